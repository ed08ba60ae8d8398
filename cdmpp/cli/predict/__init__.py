"""`cdmpp predict`: records, a program, a network through TVM, a torch module."""
