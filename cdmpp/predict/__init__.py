"""Predictions of saved models: one row per program, with optional corrections.

Start with `estimates` (arrays of predictions) and `prediction` (one row); `records` predicts files
of measure records. Training uses this package for evaluation; `tvm_helper.predict` reads TVM
programs.
"""
