"""From a program, module or network to seconds with an interval and an explanation."""
