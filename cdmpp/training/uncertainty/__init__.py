"""Intervals that hold, and programs unlike those of the training."""
