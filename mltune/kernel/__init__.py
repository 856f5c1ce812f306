"""What is tuned: kernel bundles, their search spaces and the problems that they solve."""
