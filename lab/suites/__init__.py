"""Suites of models, datasets and seeds: planned, run cell by cell, resumed after a stop."""
