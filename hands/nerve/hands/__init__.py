"""The Hands: run tools and own the truth of each execution."""
