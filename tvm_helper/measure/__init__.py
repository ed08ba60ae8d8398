"""Measuring programs on this machine: resumable campaigns, trials, health checks."""
