"""Shared parts of numba kernels: compilation, 16-bit floats, constants, and raw LLVM."""
