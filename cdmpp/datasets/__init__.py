"""Datasets of measured programs: in-memory samples, the cache, splits, sampling and export."""
