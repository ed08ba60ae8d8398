"""cdmpp's cost model in MetaSchedule's search, with a safety net."""
