"""Faults of commands: what befalls them, and what must hold afterwards."""
