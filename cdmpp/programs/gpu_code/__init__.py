"""What NVIDIA's compiler made of a GPU program: kernels read from a CUBIN, and columns of them."""
