"""Routes for networks, tables of results, run folders and their reports."""
