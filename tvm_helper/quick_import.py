"""Import of TVM in two thirds of the time, with the same result."""

from __future__ import annotations

import inspect
import linecache
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cdmpp.processes.collector import without_collector

#: Modules that the import skips. tvm-ffi imports torch, if installed, to exchange tensors, which is
#: not used here; disco finds no functions because the wheel loads its library later.
_LEFT_OUT = ("torch", "tvm.runtime.disco")


@contextmanager
def quick_import() -> Iterator[None]:
    """Makes the first `import tvm` within the context fast; restores all patched functions at exit.

    Modules of `_LEFT_OUT` are not imported; those already imported stay. The names of all global
    functions are listed when their number changes, not for each of 50 modules. Failed lookups skip
    the walk of the C++ stack; the first walk would read the symbols of all libraries.
    """
    with _left_out():
        import tvm_ffi
    registry = tvm_ffi.registry
    listed, init = registry.list_global_func_names, tvm_ffi.init_ffi_api
    names: list[str] = []
    spared: list[tuple[Any, Any, Any]] = []

    def list_names() -> list[str]:
        if registry.get_global_func("ffi.FunctionListGlobalNamesFunctor")()(-1) != len(names):
            names[:] = listed()
        return names

    def init_api(namespace: str, target_module_name: str | None = None) -> None:
        init(namespace, target_module_name)
        if namespace == "ir":
            api = sys.modules[target_module_name or namespace]
            spared.append((api, api.GetOp, api.RegisterOpAttr))
            _spare_errors(api)

    with _left_out(), without_collector():
        registry.list_global_func_names, tvm_ffi.init_ffi_api = list_names, init_api
        try:
            yield
        finally:
            registry.list_global_func_names, tvm_ffi.init_ffi_api = listed, init
            for api, get, register in spared:
                api.GetOp, api.RegisterOpAttr = get, register


@contextmanager
def _left_out() -> Iterator[None]:
    names = [name for name in _LEFT_OUT if name not in sys.modules]
    sys.modules.update(dict.fromkeys(names))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in names:
            del sys.modules[name]


def _spare_errors(api: Any) -> None:
    """Handles failed lookups and repeated registrations of operators without a C++ error."""
    get, register = api.GetOp, api.RegisterOpAttr
    known: set[str] = set()

    def get_operator(name: str) -> Any:
        if name not in known:
            names = api.ListOpNames()
            if len(names) != len(known):
                known.update(map(str, names))
        if name not in known:
            raise AttributeError(f"Operator {name} is not registered")
        return get(name)

    def register_attribute(name: str, key: str, value: Any, level: int) -> None:
        is_there = key == "TScriptPrinterName" and api.OpGetAttr(get(name), key) == value
        if not is_there:
            register(name, key, value, level)

    api.GetOp, api.RegisterOpAttr = get_operator, register_attribute


@contextmanager
def cheap_inspect_stack() -> Iterator[None]:
    """Makes `inspect.stack` read one line of each frame, instead of searching source files."""

    def stack(context: int = 1) -> list[inspect.FrameInfo]:
        del context
        frame: types.FrameType | None = sys._getframe(1)
        found = []
        while frame is not None:
            code = frame.f_code
            line = linecache.getline(code.co_filename, frame.f_lineno)
            lines, index = ([line], 0) if line else (None, None)
            found.append(
                inspect.FrameInfo(
                    frame, code.co_filename, frame.f_lineno, code.co_name, lines, index
                )
            )
            frame = frame.f_back
        return found

    original = inspect.stack
    inspect.stack = stack
    try:
        yield
    finally:
        inspect.stack = original
