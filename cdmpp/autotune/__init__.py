"""Hyper-parameters of the cost models, found by trials on the validation part."""
