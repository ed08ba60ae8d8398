"""Times of embedding lookups on a GPU and on a CPU, and their measuring campaign."""
