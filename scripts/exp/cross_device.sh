#!/usr/bin/env bash
# Front of `cdmpp finetune`, with its name in the original cdmpp.
exec python "$(dirname "$0")/../finetune.py" "$@"
