"""`cdmpp search`: search for schedules of tasks or a network, guided by a cost model."""
