"""Baselines: published CDMPP, recursive LSTM, Tenset MLP and TLP, reimplemented."""
