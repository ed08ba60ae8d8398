"""Reader of Tenset's folders: record lines, tasks, compute graphs, operator names, FLOP counts."""
