"""The Brain: runs agents and owns the truth of the conversation."""
