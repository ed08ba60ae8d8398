"""Reader of AutoTVM's logs."""
