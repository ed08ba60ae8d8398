"""Replays a graph of operators with their times: the latency of a whole network."""
