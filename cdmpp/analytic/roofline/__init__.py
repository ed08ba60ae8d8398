"""Bounds by peak arithmetic and bandwidth: programs, operators, levels of memory."""
