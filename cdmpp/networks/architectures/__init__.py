"""Random networks: what is drawn, and how it is built in torch."""
