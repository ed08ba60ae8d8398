"""Times of kernels from operator calls: work of a call, and one interface to all models."""
