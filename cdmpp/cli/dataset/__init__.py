"""`cdmpp dataset`: fetch, extract, look at, audit, merge and export datasets."""
