"""Profiles of other tools: read, merged, explained, compared and drawn."""
