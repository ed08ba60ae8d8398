"""`cdmpp benchmark`: one model on a dataset, or a suite and its leaderboard."""
