"""ONNX files as people have them: sizes that are set, shape arithmetic, operators TVM lacks."""
