#!/usr/bin/env bash
# Front of `cdmpp train`, under its name in the original, whose first word was `none`.
[ "${1-}" != none ] || shift; exec python "$(dirname "$0")/../train.py" "$@"
