"""Cost models: samples in, seconds out. Nothing heavy is imported here; see `registry`."""
