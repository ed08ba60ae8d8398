"""Recorded runs as graphs: profiler traces, execution traces, DLRM training."""
