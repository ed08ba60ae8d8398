"""`cdmpp explain`: where the time of a program or network goes."""
