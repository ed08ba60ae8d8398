"""`cdmpp serve`: the options of the server, and what it says when it answers."""
