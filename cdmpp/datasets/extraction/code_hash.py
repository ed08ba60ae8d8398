"""Digest of the source code that builds a shard: shards of other code are rebuilt."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Callable, Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError
from cdmpp.files.places import beside_package

_PACKAGES = ("cdmpp", "tvm_helper")
#: Module that writes the rows, for all featurisers.
_ROWS = "cdmpp.datasets.extraction.shard"
#: Folder with sources in another language, beside the modules that compile them.
_SOURCES = "src"

#: A module and the names imported from it (empty: the module itself; None: a string constant that
#: may name a module).
_Mention = tuple[str, tuple[str, ...] | None]


def code_hash(*makers: Callable[..., Any]) -> str:
    """Returns a digest of the modules of functions and classes that build a shard, and of all cdmpp
    modules that these import.

    Raises:
        DataError: the source of a module is missing.
    """
    digest = hashlib.sha256(" ".join(maker.__qualname__ for maker in makers).encode())
    roots = {maker.__module__: Path(inspect.getsourcefile(maker) or "") for maker in makers}
    for name, path in sorted(import_closure(roots | {_ROWS: _file_of(_ROWS)}).items()):
        digest.update(f"{name}\0".encode())
        digest.update(_read(path))
    return digest.hexdigest()


def import_closure(roots: dict[str, Path]) -> dict[str, Path]:
    """Returns name -> source file of modules and of all cdmpp modules that they import.

    Imports inside functions and names of modules that are run as processes count; imports for type
    checkers do not. Sources in another language are added to the modules beside their folder.

    Raises:
        DataError: the source of a module is missing.
    """
    found: dict[str, Path] = {}
    waiting = dict(roots)
    while waiting:
        name, path = waiting.popitem()
        found[name] = path
        for source in (path.parent / _SOURCES).glob("*.[ch]*"):
            found[f"{name.rpartition('.')[0]}/{source.name}"] = source
        modules = _imports(_read(path), str(path))
        waiting |= {module: _file_of(module) for module in modules if module not in found}
    return found


def _imports(source: bytes, filename: str) -> Iterator[str]:
    """Yields the names of cdmpp modules that a source imports or starts."""
    for module, names in _mentions(source, filename):
        if names is None:
            if _find(module):
                yield module
            continue
        inner = [f"{module}.{name}" for name in names]
        modules = [name for name in inner if _find(name)]
        yield from modules
        if not inner or len(modules) < len(inner):
            yield module


@lru_cache(maxsize=1024)
def _mentions(source: bytes, filename: str) -> tuple[_Mention, ...]:
    """Returns the cdmpp modules named in a source; cached, so that each source is parsed once."""
    return tuple(_mentions_below(ast.parse(source, filename=filename)))


def _mentions_below(node: ast.AST) -> Iterator[_Mention]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, ()) for alias in child.names if _is_ours(alias.name))
        elif isinstance(child, ast.ImportFrom) and child.module and _is_ours(child.module):
            yield child.module, tuple(alias.name for alias in child.names)
        elif isinstance(child, ast.Constant) and isinstance(child.value, str):
            if _is_ours(child.value):
                yield child.value, None
        elif not _is_for_type_checkers(child):
            yield from _mentions_below(child)


def _is_ours(module: str) -> bool:
    return module.partition(".")[0] in _PACKAGES


def _is_for_type_checkers(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def _find(module: str) -> Path | None:
    """Returns the source file of a module without importing it; None if there is none."""
    place = beside_package().joinpath(*module.split("."))
    tries = (place.with_name(f"{place.name}.py"), place / "__init__.py")
    return next((path for path in tries if path.is_file()), None)


def _file_of(module: str) -> Path:
    path = _find(module)
    if path is None:
        raise DataError(_missing(f"the source of {module} is missing"))
    return path


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(_missing(f"cannot read {path} ({error.strerror or error})")) from None


def _missing(what: str) -> str:
    return f"{what}: it identifies the code that extracted a shard. Reinstall cdmpp"
