"""Scripts for a short session with a GPU; each writes files that the product reads."""
