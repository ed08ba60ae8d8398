"""Work of kernels by family: lower bounds, terms of the nominal time, and learned inputs."""
