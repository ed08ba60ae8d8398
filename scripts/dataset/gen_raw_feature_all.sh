#!/usr/bin/env bash
# Front of `cdmpp dataset extract`, with its name in the original cdmpp.
exec python "$(dirname "$0")/../extract.py" "$@"
