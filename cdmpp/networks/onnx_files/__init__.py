"""Preparation of ONNX files: input sizes, shape arithmetic, operators that TVM cannot import."""
