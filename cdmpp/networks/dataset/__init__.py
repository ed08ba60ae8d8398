"""Measured networks: storage, the published data set, splits and encoding."""
