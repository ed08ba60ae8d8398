"""Public measurement records by name: where they lie, downloading, unpacking, checking."""
