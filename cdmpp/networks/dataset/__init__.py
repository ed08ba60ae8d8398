"""Measured networks as samples: the store, the published dataset, splits, encoding."""
