"""TVM's TIR and loop trees: reading modules, the canonical level, features of modules."""
