"""`cdmpp train`, and what is added to a trained model: `train-code` and `distil`."""
