"""Kernels of serving frameworks on current GPUs: products, attention and collectives."""
