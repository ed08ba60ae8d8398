"""Operator graphs of torch networks, with work and live memory of every operator."""
