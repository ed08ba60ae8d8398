"""tvm_helper."""
