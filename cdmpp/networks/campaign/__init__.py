"""Measuring campaigns: time, memory and utilisation of networks' training and inference steps."""
