"""legacy: the old TVM (AutoTVM, Ansor) in an environment of its own, reached through a pipe."""
