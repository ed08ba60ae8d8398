"""Ansor's records rebuilt as loop trees in plain Python. Loads without TVM."""
