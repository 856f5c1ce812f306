"""Wisdom: the best known configurations, in one file that is carried from machine to machine."""
