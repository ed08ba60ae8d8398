"""`cdmpp serve`: hot models behind HTTP that many clients ask, and their client."""
