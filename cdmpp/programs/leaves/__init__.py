"""The columns of every store of a loop tree in Python: what the native featuriser is tested on."""
