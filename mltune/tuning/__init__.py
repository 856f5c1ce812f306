"""Tuning: the loop that proposes, builds, measures and learns, and its input and output."""
