"""Loads the function of a `module:factory` option, which creates a torch module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from cdmpp.errors import DataError, UsageError

_EXPECTED = "expected MODULE:FACTORY, e.g. my_networks:resnet or my_networks.py:resnet"


def load_factory(text: str) -> Callable[[], Any]:
    """Returns the function or class named by the text, which is called without arguments.

    The module is a Python file, or is imported from the working folder or the Python path. Its code
    is run.

    Raises:
        UsageError: the module, file or name does not exist, or the object cannot be called without
            arguments.
        DataError: the module's own code fails.
    """
    where, colon, name = text.rpartition(":")
    if not colon or not where or not name:
        raise UsageError(f"{text!r} has no factory; {_EXPECTED}")
    module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    factory: Any = module
    for part in name.split("."):
        if not hasattr(factory, part):
            raise UsageError(f"{where} has no {name!r}{_names(module)}; {_EXPECTED}")
        factory = getattr(factory, part)
    if not callable(factory):
        raise UsageError(
            f"{text} is {_a(type(factory).__name__)}, expected a function without arguments that "
            "returns a torch module"
        )
    _check_arguments(text, factory)
    return factory  # type: ignore[no-any-return]


def _check_arguments(text: str, factory: Callable[..., Any]) -> None:
    from torch import nn

    if isinstance(factory, nn.Module):
        raise UsageError(
            f"{text} is a torch module; expected a function that returns it, e.g. `def make(): "
            f"return {text.rpartition(':')[2]}`"
        )
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # some extension classes have no signature
        return
    try:
        signature.bind()
    except TypeError as error:
        raise UsageError(
            f"{text}{signature} needs arguments ({error}); expected a function without "
            "arguments, e.g. one that calls it with your values"
        ) from None


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"no file {path}; {_EXPECTED}")
    name = f"_cdmpp_network_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(path.parent.resolve())
    with _searched_in(folder):
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:  # whatever the file's own code raises
            raise _failed(str(path), error) from error
    return module


def _from_name(name: str) -> ModuleType:
    with _searched_in(str(Path.cwd())):
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError as error:
            if error.name and (name == error.name or name.startswith(f"{error.name}.")):
                raise UsageError(
                    f"no module {name!r}: neither installed nor in the working folder; {_EXPECTED}"
                ) from None
            raise _failed(name, error) from error
        except (Exception, SystemExit) as error:  # whatever the module's own code raises
            raise _failed(name, error) from error


@contextmanager
def _searched_in(folder: str) -> Iterator[None]:
    """Adds a folder to the start of the module search path and sends stdout to stderr."""
    sys.path.insert(0, folder)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        if folder in sys.path:
            sys.path.remove(folder)


def _failed(what: str, error: BaseException) -> DataError:
    lines = str(error).strip().splitlines()
    said = f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
    return DataError(f"{what} cannot be imported ({said}); fix it, or install its dependencies")


def _names(module: ModuleType) -> str:
    names = [
        name
        for name, value in vars(module).items()
        if inspect.isfunction(value)
        and not name.startswith("_")
        and value.__module__ == module.__name__
    ]
    return f", only {', '.join(names[:8])}" if names else ""


def _a(noun: str) -> str:
    return f"an {noun}" if noun[:1] in "aeiou" else f"a {noun}"
