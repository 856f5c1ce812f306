"""Problems: the computations that kernels perform, independent of how a kernel performs them."""
