"""Profiles of other tools: readers, merging, explanation, comparison and plots."""
