"""Programs drawn at random as people bring them: tasks, and schedules as if written by hand."""
