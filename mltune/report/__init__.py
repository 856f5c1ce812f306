"""The morning report: what a night has found, how sure that is, and what went wrong."""
