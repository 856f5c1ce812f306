"""Child processes and signal handling."""
