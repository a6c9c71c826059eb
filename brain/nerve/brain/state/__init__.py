"""Laws of state: pure functions and transition tables, no I/O and no clock."""
