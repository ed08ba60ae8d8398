"""Scripts for a short session with a GPU; each writes files for the product."""
