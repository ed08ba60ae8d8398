"""`cdmpp predict`: latencies of records, programs, networks compiled by TVM, torch modules."""
