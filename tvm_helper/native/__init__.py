"""The native featuriser of modules in TVM's hands; records are featurised by `cdmpp.programs`."""
