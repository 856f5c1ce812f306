"""What a kernel is tuned for: the facts of a GPU and its occupancy."""
