"""Time models of cuDNN's forward convolutions (SEER) and of the other operators of a CNN."""
