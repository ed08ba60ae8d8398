"""Files that appear whole or not at all, journals, and readers that trust nobody."""
