"""`cdmpp device`: known devices, occupancy, and adding the machine at hand."""
