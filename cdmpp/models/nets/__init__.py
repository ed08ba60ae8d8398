"""Torch modules and losses of the cost models, and their options."""
