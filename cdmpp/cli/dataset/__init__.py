"""`cdmpp dataset`: fetch, extract, summarise, audit, merge and export datasets."""
