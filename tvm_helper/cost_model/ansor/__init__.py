"""Our model inside the old Ansor, over a pipe. Loads without TVM."""
