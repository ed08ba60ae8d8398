"""Timers: statistics of repeats, nested timers, profiler ranges, barriers."""
