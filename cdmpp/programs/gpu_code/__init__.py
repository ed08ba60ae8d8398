"""Machine code of GPU programs: kernels read from a CUBIN, and their feature columns."""
