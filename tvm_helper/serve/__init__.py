"""Reading of untrusted programs for `cdmpp serve`, without executing any of their code."""
