"""Cost models: samples in, seconds out. Nothing heavy is imported here; see `registry`.

`nets` has the torch modules and losses, `loop` the training loop, `parts` what models share, and
`baselines` published models rebuilt.
"""
