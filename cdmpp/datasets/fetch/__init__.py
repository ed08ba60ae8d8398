"""Public measurement records by name: registry, download, unpacking, checks."""
