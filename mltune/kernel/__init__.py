"""Kernel bundles, the language of their expressions, and their search spaces."""
