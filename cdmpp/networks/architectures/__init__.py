"""Random networks: drawing architectures and building them in torch."""
