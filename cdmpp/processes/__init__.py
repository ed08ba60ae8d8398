"""Child processes that may hang or die: pipes, workers, pools, Ray clusters."""
