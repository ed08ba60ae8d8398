"""Tensor programs: Ansor's transform steps, loop trees, and feature columns of their stores.

Start with `featurise` (records to compact ASTs) and `schema` (names of the columns).
`tvm_helper.tir` reads TVM programs into the same loop trees.
"""
