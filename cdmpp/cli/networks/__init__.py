"""`cdmpp networks`: networks drawn, measured, trained on and evaluated."""
