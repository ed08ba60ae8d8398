"""Times of whole convolution layers, fitted to tables of measured layers."""
