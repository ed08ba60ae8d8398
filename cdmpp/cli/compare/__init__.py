"""`cdmpp compare`: options, and tables of single passes and of servers under load."""
