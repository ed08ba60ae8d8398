"""Experiments: each measures something and writes its page in docs/results."""
