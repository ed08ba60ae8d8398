"""Programs to compile: program files, network tasks, sampling, targets, building, machine code."""
