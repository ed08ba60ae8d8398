"""Language models as they are served: their layers, one step of them, and many under load."""
