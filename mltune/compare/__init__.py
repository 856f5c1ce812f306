"""Search strategies side by side, on recorded timings."""
