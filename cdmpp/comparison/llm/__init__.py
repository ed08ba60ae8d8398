"""Language models in serving: layers, steps, and servers under load."""
