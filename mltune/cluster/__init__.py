"""Machines of a Dask cluster: compilers on other hosts, and campaigns on the GPUs of several."""
