"""Time of one step of a network on a GPU, from the kernels that torch launches."""
