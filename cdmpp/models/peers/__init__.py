"""Published models rebuilt as peers: CDMPP as published, recursive LSTM, Tenset MLP, TLP."""
