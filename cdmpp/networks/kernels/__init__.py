"""The GPU kernels that torch launches for a network, their element types and their memory."""
