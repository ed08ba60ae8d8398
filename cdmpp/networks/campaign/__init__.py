"""Measuring networks: time, memory and utilisation of a training or inference step."""
