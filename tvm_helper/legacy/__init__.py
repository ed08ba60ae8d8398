"""legacy: the old TVM (AutoTVM, Ansor) in a separate environment, over a pipe."""
