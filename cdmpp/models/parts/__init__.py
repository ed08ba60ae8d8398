"""Shared parts of cost models: labels, batches, pooling, normalisation and priors."""
