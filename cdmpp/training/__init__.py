"""Training runs: from options to a run folder, estimates with intervals, packaging."""
