"""Native featuriser of TVM modules; `cdmpp.programs` has the one of records."""
