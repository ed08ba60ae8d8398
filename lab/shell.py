"""Runs commands of the product, and functions in separate processes, for experiments."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from collections.abc import Iterable, Mapping
from typing import Any

from lab.paths import ROOT


def cdmpp(command: str, *words: object, quiet: bool = False, **options: object) -> None:
    """Runs `cdmpp COMMAND WORDS --option value ...` in the checkout.

    Args:
        quiet: whether to discard its output.
        options: by name (`per_task` for `--per-task`); True for an option without a value, None to
            omit it, a list to repeat it.

    Raises:
        CalledProcessError: it fails.
    """
    output = subprocess.DEVNULL if quiet else None
    subprocess.run(_typed(command, words, options), check=True, cwd=ROOT, stdout=output)


def cdmpp_json(command: str, *words: object, **options: object) -> Any:
    """Returns the JSON value printed by `cdmpp COMMAND ... --json`; arguments as in `cdmpp`.

    Raises:
        CalledProcessError: it fails.
    """
    typed = _typed(command, words, {**options, "json": True})
    done = subprocess.run(typed, check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    return json.loads(done.stdout)


def _typed(command: str, words: Iterable[object], options: Mapping[str, object]) -> list[str]:
    typed = [sys.executable, "-m", "cdmpp.cli.main", *command.split(), *map(str, words)]
    for name, value in options.items():
        values = value if isinstance(value, list) else [] if value is None else [value]
        for one in values:
            typed.append(f"--{name.replace('_', '-')}")
            if one is not True:
                typed.append(str(one))
    return typed


def in_process(place: str, *arguments: object) -> Any:
    """Calls a function in a new process and returns its JSON value.

    Args:
        place: `module:function`; paths among its arguments arrive as strings.

    Raises:
        CalledProcessError: it fails.
    """
    command = [sys.executable, "-m", "lab.shell", place, json.dumps(arguments, default=os.fspath)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    return json.loads(done.stdout.splitlines()[-1])


def _call(place: str, arguments: str) -> None:
    module, _, name = place.partition(":")
    print(json.dumps(getattr(importlib.import_module(module), name)(*json.loads(arguments))))


if __name__ == "__main__":
    _call(*sys.argv[1:])
