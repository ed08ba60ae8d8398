"""Time, memory and utilisation of whole networks, predicted from the operator graph."""
