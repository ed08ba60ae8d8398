"""cdmpp's cost model in Ansor, over a pipe. Imports without TVM."""
