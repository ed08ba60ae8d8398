"""A lowered program as numbers: compact AST, leaf columns, columns of machine code."""
