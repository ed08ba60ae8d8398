"""`cdmpp device`: known devices, occupancy, and adding this machine."""
