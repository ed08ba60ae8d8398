"""Proof that a dataset and its splits do not leak, and statistics of a dataset."""
