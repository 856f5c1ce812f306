"""Measuring a configuration: compile, verify, time, or replay a recorded measurement."""
