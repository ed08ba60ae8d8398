"""`cdmpp search`: schedules for the tasks of a network, and what to say of them."""
