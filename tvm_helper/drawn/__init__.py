"""Random programs similar to those of users: tasks, and schedules similar to hand-written ones."""
