"""`cdmpp dataset`: extract, stats, audit, merge and export of datasets."""
