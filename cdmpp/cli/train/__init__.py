"""`cdmpp train`, and the commands that extend a trained model: `train-code` and `distil`."""
