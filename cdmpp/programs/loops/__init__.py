"""A lowered program before it becomes numbers: expressions, loop tree, simplifier, intervals."""
