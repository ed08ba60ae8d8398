"""`cdmpp analytic conv|embedding|operator`."""
