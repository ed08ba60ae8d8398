"""Experiments: each one measures something and writes its page in docs/results."""
