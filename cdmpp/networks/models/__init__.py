"""Models that predict time, memory and utilisation of whole networks from their graphs."""
