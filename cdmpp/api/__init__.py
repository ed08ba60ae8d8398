"""The public Python API behind `import cdmpp`. The commands call the same functions."""
