"""Times of single network operators, fitted to tables of measured operators."""
