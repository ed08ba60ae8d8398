"""Reader and writer of MetaSchedule databases."""
