"""Programs as records say them and as numbers: Ansor's steps, loop trees, columns of stores.

Begin with `featurise` (records to compact ASTs) and `schema` (what the columns are). Programs in
TVM's hands are read by `tvm_helper.tir`, which makes the same loop trees.
"""
