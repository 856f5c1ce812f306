"""Ask and tell: the next configurations to measure, and which to skip."""
