"""Libraries: a kernel in a few configurations, with a dispatcher from sizes to them, as C source and data."""
