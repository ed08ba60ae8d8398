"""`cdmpp dataset extract|stats|audit|merge|export`."""
