"""Work of kernels by family: lower bounds, nominal times, and inputs of the learned part."""
