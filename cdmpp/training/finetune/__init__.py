"""Fine-tuning on a new device or network from few measurements."""
