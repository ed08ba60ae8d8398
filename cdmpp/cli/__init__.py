"""The command line: one module or folder a command; it parses, calls one function and prints."""
