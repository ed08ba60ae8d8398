"""`cdmpp networks generate|measure|train|evaluate`."""
