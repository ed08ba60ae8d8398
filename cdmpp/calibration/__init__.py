"""Intervals that hold, out-of-distribution programs, and times carried over between devices."""
