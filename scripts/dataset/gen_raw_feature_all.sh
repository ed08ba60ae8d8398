#!/usr/bin/env bash
# Front of `cdmpp dataset extract`, under its name in the original.
exec python "$(dirname "$0")/../extract.py" "$@"
