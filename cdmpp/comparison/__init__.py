"""`cdmpp compare`: latency, memory and cost of networks on many devices."""
