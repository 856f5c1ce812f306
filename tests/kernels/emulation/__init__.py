"""CUDA kernels on the host: the unmodified source, compiled by g++, its threads and barriers emulated and checked."""
