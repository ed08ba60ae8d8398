#!/usr/bin/env bash
# Front of `cdmpp train`, with its name in the original cdmpp, whose first argument was `none`.
[ "${1-}" != none ] || shift; exec python "$(dirname "$0")/../train.py" "$@"
