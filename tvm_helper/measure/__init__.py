"""Measuring programs on this machine: campaigns that survive a kill, trials, health checks."""
