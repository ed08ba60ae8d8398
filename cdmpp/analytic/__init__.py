"""Closed forms and small fits of what an operator takes: baselines, and priors of cost models."""
