"""GPU kernels that torch launches for a network, their element types and memory."""
