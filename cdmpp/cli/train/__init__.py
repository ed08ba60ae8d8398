"""`cdmpp train`, and `train-code`, which teaches a model to read machine code."""
