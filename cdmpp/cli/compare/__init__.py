"""`cdmpp compare`: its options, and its tables of passes and of servers under load."""
