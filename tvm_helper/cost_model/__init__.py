"""Our model inside MetaSchedule's search, with a safety net."""
