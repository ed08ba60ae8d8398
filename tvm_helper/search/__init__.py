"""`cdmpp search`: schedules of the tasks of a network, guided by a cost model."""
