"""Ansor's measure records: computations, transform steps and the schedules that they describe."""
