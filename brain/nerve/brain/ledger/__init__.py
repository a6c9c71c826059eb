"""The Brain's truth: tables, one transaction function per law, and the queries that read them."""
