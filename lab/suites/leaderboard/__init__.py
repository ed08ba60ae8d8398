"""Pages of a suite: tidy rows, tables, plots and verdicts."""
