"""Pages of a suite: tidy rows, tables and verdicts."""
