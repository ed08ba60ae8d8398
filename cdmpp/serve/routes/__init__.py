"""Routes beyond programs: networks, tables of results, run folders, and their reports."""
