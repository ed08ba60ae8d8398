"""Whole networks: time, memory and utilisation from the operator graph, before anything runs."""
