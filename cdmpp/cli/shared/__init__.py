"""Shared code of commands: options, progress bars, tables on the terminal."""
