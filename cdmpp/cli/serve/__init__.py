"""`cdmpp serve`: the server's options, and its message when it is ready."""
