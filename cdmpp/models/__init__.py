"""Cost models: they predict the latency of samples in seconds. `registry` imports them lazily.

`nets` has the torch modules and losses, `loop` the training loop, `parts` the code that models
share, and `baselines` reimplementations of published models.
"""
