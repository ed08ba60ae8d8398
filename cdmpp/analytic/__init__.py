"""Closed forms and small fits of operator times: baselines, and priors of cost models."""
