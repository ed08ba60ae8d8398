"""Programs to compile: program files, network tasks, sampling, targets, builds, machine code."""
