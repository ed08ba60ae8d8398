"""From a graph of operators with their times to the latency of a whole network."""
