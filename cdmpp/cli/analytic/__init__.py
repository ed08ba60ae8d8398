"""`cdmpp analytic`: the closed-form models of convolutions, embedding lookups and operators."""
