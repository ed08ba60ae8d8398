"""Times of cuDNN convolutions by algorithm, fitted to hardware counters (SEER)."""
