"""Comparison of search strategies on recorded timings."""
