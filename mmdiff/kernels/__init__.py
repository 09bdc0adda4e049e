"""What all numba kernels share: compilation, float formats, and raw LLVM."""
