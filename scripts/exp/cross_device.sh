#!/usr/bin/env bash
# Front of `cdmpp finetune`, under its name in the original.
exec python "$(dirname "$0")/../finetune.py" "$@"
