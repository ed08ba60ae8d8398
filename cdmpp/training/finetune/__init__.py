"""Fine-tuning of a trained model on a new device or network from few measurements."""
