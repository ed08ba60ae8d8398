"""The sweep: a fixed list of GPU kernels that is measured on a new GPU, and what it corrects."""
