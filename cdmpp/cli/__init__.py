"""The command line: one module or folder per command parses, calls one function and prints."""
