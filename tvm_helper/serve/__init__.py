"""Programs that strangers send, read without running anything of them, for `cdmpp serve`."""
