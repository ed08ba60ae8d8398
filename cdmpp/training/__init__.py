"""Training: the loop, checkpoints, runs and run folders."""
