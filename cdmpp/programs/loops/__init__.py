"""Lowered programs: expressions, loop trees, a simplifier and region compaction."""
