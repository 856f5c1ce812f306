"""Many problems that share a budget, on the GPUs of a machine or of a cluster."""
