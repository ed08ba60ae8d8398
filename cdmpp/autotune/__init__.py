"""Hyper-parameter search for the cost models on the validation part."""
