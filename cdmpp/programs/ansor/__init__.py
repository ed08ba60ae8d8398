"""Ansor's measure records: computations, transform steps, and the loop trees they make."""
