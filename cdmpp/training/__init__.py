"""Training runs: they train, calibrate, evaluate and save a model in a run folder."""
