"""One module a profile format, and what they share."""
