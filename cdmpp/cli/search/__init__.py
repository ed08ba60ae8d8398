"""`cdmpp search`."""
