#!/usr/bin/env bash
# Front of `cdmpp dataset extract`, which does both steps of the original cdmpp.
exec python "$(dirname "$0")/../extract.py" "$@"
