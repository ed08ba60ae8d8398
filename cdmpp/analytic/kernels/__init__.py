"""Who times a kernel: operator call, work, seconds; one front for all analytic models."""
