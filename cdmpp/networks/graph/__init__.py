"""Operator graphs of networks: from torch, with work and live memory of every operator."""
