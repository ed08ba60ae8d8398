"""`cdmpp device add|list|show|occupancy`."""
