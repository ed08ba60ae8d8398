"""The training loop: epochs, checkpoints, pace, several processes."""
