"""What is kept: trials, the store of a run, datasets."""
