"""Work of kernels by family: floors, terms of the nominal time, inputs of the learned part."""
