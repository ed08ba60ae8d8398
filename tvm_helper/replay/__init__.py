"""Networks compiled by TVM: graph of fused kernels, costs of kernels, measured networks."""
