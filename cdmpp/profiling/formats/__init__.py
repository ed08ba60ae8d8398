"""Readers of profile formats, one module each, and their shared parts."""
