"""Models of whole networks: graph in; time, memory and utilisation out."""
