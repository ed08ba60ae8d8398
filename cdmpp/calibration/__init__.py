"""Calibrated intervals, out-of-distribution programs, and transfer of times between devices."""
