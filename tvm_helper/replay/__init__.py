"""Networks through TVM: the graph of fused kernels, their costs, the measured network."""
