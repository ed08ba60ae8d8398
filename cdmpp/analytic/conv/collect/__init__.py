"""Collection of convolution kernels and their counters on a GPU with cuDNN."""
