"""Published models rebuilt as baselines: CDMPP as published, recursive LSTM, Tenset MLP, TLP."""
