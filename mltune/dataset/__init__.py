"""Datasets: recorded timings as Parquet tables with a manifest, and readers of other formats."""
