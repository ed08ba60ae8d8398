"""`cdmpp device add`: benchmarks, measuring, fine-tuning and the error-versus-budget curve."""
