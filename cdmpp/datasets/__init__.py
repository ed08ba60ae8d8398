"""Datasets of measured programs: samples in memory, the cache, splits, sampling and export."""
