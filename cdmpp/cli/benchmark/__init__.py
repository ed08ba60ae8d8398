"""`cdmpp benchmark`."""
