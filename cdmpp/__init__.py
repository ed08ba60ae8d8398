"""cdmpp: how long a tensor program takes on a device, predicted without running it."""

__version__ = "0.1.0"
