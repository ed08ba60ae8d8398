"""The public Python as text: every name with its signature, in `signatures.txt`.

python -m tests.api.signatures write
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

import cdmpp

FILE = Path(__file__).with_suffix(".txt")
#: Folders whose names are public too.
FOLDERS = ("devices", "testing")


def public() -> Iterator[tuple[str, Any]]:
    """Yields every public name with what it stands for, members of classes too."""
    for name in sorted(cdmpp._PLACES):
        found = getattr(cdmpp, name)
        if name in FOLDERS:
            for inner in sorted(found.__all__):
                yield from _with_members(f"cdmpp.{name}.{inner}", getattr(found, inner))
        else:
            yield from _with_members(f"cdmpp.{name}", found)


def _with_members(name: str, found: Any) -> Iterator[tuple[str, Any]]:
    yield name, found
    if inspect.isclass(found):
        for inner, member in sorted(vars(found).items()):
            if not inner.startswith("_") and _is_promised(member):
                yield f"{name}.{inner}", member


def _is_promised(member: object) -> bool:
    return callable(member) or isinstance(member, classmethod) or hasattr(member, "__get__")


def text() -> str:
    """Returns a line a name."""
    return "".join(f"{line}\n" for name, found in public() for line in _lines(name, found))


def _lines(name: str, found: Any) -> Iterator[str]:
    if inspect.isclass(found):
        yield f"class {name}"
        if not is_dataclass(found):
            own = vars(found).get("__annotations__", {})
            yield from (f"{name}.{one}: {kind}" for one, kind in own.items())
        else:
            yield from (
                f"{name}.{one.name}: {one.type}" for one in fields(found) if one.name[0] != "_"
            )
        return
    inner = getattr(found, "__func__", None) or getattr(found, "fget", None)
    inner = inner or getattr(found, "func", found)
    signature = inspect.signature(inner)
    if isinstance(found, property) or hasattr(found, "attrname"):
        yield f"{name}: {signature.return_annotation}"
    else:
        yield f"{name}{signature}"


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        FILE.write_text(text(), encoding="utf-8")
    else:
        print(text(), end="")
