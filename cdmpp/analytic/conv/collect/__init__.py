"""Convolution kernels and their counters, collected on a GPU with cuDNN."""
