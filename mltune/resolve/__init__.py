"""Names of kernels, problems, devices and plans, resolved to objects."""
