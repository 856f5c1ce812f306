"""GPUs: facts, theoretical peaks, occupancy, and their state while they run."""
