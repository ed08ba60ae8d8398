"""`cdmpp networks`: generates and measures networks, trains and evaluates models on them."""
