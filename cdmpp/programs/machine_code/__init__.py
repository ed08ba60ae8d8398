"""What a compiler made of a program: LLVM's text of it, and columns that are read off it."""
