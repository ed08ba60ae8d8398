"""The stamp of a page: versions of code, data and models behind its numbers."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

from cdmpp.devices.vector import DEVICE_VECTOR_SCHEMA_VERSION
from cdmpp.errors import DataError
from cdmpp.files.atomic import sha256_file
from cdmpp.files.places import is_checkout, package_folder
from cdmpp.machine import machine, versions
from cdmpp.networks.dataset.rows import SCHEMA_VERSION
from cdmpp.pretrained import DEFAULT, PRETRAINED
from cdmpp.programs.compact_ast import LEAF_EXTRA_SCHEMA_VERSION, LEAF_SCHEMA_VERSION
from cdmpp.programs.gpu_code.columns import GPU_CODE_SCHEMA_VERSION
from cdmpp.programs.machine_code.columns import MACHINE_CODE_SCHEMA_VERSION
from lab.paths import PAGES

#: File in the folder of the committed pages: name of a full page -> its stamp.
STAMPS = "stamps.json"

#: Versions of model inputs, by name.
SCHEMAS: Mapping[str, int] = {
    "leaf": LEAF_SCHEMA_VERSION,
    "leaf_extra": LEAF_EXTRA_SCHEMA_VERSION,
    "device": DEVICE_VECTOR_SCHEMA_VERSION,
    "machine_code": MACHINE_CODE_SCHEMA_VERSION,
    "gpu_code": GPU_CODE_SCHEMA_VERSION,
    "networks": SCHEMA_VERSION,
}
#: Inputs of a program model without and with machine code.
PROGRAMS = ("leaf", "leaf_extra", "device")
COMPILED = (*PROGRAMS, "machine_code")

_CODE = ("cdmpp", "tvm_helper", "scripts", "configs", "lab")


def stamp(
    command: str,
    *,
    schemas: Sequence[str] = (),
    models: Iterable[Path | str] = (),
    data: Mapping[str, str] | None = None,
    parts: Iterable[Mapping[str, Any] | None] = (),
) -> dict[str, Any]:
    """Returns the provenance of results that are made now.

    Args:
        command: command that reproduces them.
        schemas: names of `SCHEMAS` that the results depend on.
        models: evaluated models, as `--model` names them; `pretrained:NAME` for a packaged one.
        data: dataset -> its hash.
        parts: stamps of earlier results that are summarised here; None for a part without a stamp.

    Raises:
        DataError: a model is missing.
    """
    changes = git_output("status", "--porcelain", "--", *(f":/{folder}" for folder in _CODE))
    found = {
        "command": command,
        "commit": commit(),
        "date": date.today().isoformat(),
        "is_changed": None if changes is None else bool(changes),
        "schema": {name: SCHEMAS[name] for name in schemas},
        "models": {str(model): model_digest(model) for model in models},
        "data": dict(data or {}),
        "versions": versions(),
        "machine": machine(),
    }
    distinct = {str(short): short for short in map(_short, parts)}
    return found | ({"parts": list(distinct.values())} if distinct else {})


def stamps(pages: Path = PAGES) -> dict[str, Any]:
    """Returns the committed stamps: name of a full page -> its stamp."""
    return dict(json.loads((pages / STAMPS).read_text("utf-8")))


def commit() -> str | None:
    """Returns the commit of the checkout that contains this package; None outside a checkout."""
    if not is_checkout():  # an installed package may be inside another project's checkout
        return None
    return git_output("rev-parse", "HEAD")


def git_output(*arguments: str) -> str | None:
    """Returns the output of git in this package's folder; None if git fails."""
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=package_folder("cdmpp"),
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _short(part: Mapping[str, Any] | None) -> dict[str, Any] | None:
    return None if part is None else {key: part[key] for key in ("commit", "schema", "models")}


def model_digest(model: Path | str) -> str:
    """Returns 16 hex digits of the hash of a model's files, without its card.

    Raises:
        DataError: there is no model.
    """
    word, _, name = str(model).partition(":")
    is_packaged = word == PRETRAINED
    folder = package_folder("cdmpp.pretrained") / (name or DEFAULT) if is_packaged else Path(model)
    files = sorted(
        path for path in folder.rglob("*") if path.is_file() and path.name != "card.json"
    )
    if not files:
        raise DataError(f"{folder}: no files of a model there; expected pretrained or a run folder")
    digest = hashlib.sha256()
    for path in files:
        digest.update(f"{path.relative_to(folder).as_posix()} {sha256_file(path)}\n".encode())
    return digest.hexdigest()[:16]


def stamp_rows(found: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Returns the (name, value) rows of a stamp on a page, without empty ones."""
    changed = " and changes that are in none" if found["is_changed"] else ""
    rows = [("commit", f"{found['commit'] or 'unknown'}{changed}")]
    rows += [(key, _pairs(found[key])) for key in ("schema", "models", "data", "versions")]
    rows.append(("machine", _pairs(found["machine"])))
    if parts := found.get("parts"):
        commits = sorted({str((part or {}).get("commit"))[:12] for part in parts})
        rows.append(("commits of its parts", ", ".join(commits)))
    return [(name, value) for name, value in rows if value]


def _pairs(values: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items())
