"""AutoTVM's logs: their files, and the samples in them."""
