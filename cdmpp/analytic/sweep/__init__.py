"""The sweep: reference kernels measured on a new GPU, and the corrections fitted to them."""
