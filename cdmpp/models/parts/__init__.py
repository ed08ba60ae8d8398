"""What several cost models share: labels, batches, pooling, normalisation, priors."""
