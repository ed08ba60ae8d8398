"""Machine code of CPU programs: a parser of LLVM's text, and feature columns of it."""
