"""`cdmpp replay`: the latency of a whole network from its operators."""
