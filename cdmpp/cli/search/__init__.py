"""`cdmpp search`: searches schedules for tasks or a network, and prints the results."""
