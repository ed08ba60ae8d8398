"""Predictions of saved models: one row a program, made better by what else is known of it.

Begin with `estimates` (a saved model's arrays) and `prediction` (the row); `records` predicts files
of measure records. Training is above it and evaluates with it; programs in TVM's hands are read by
`tvm_helper.predict`.
"""
