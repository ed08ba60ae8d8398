"""Reader of AutoTVM logs, and their extraction."""
