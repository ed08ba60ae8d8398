"""Commands of the laboratory: `benchmark`, `golden` and `pretrain`, as `python -m lab NAME`."""
