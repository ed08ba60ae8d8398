"""TVM's TIR and loop trees: readers of modules, canonical form, features of modules."""
