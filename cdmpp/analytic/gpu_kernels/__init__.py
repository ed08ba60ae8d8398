"""Kernels of serving frameworks on GPUs of today: products, attention and collectives."""
