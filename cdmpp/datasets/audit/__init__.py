"""Checks for leakage in a dataset and its splits, and statistics of a dataset."""
