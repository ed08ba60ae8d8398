"""`cdmpp compare`: what networks take, need and cost on many devices, side by side."""
