"""Atomic writes, journals, and readers that treat every file as untrusted."""
