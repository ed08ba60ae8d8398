"""`cdmpp serve`: loaded models behind HTTP for many clients, and their client."""
