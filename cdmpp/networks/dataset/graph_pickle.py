"""Names allowed in a pickled graph of the published data set, mapped to inert stubs.

The pickles have a networkx graph with dictionaries of plain values or numpy scalars as nodes.
Neither networkx nor anything else that a pickle names is loaded or run.
"""

from __future__ import annotations

import pickle
import re
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from cdmpp.files.restricted_pickle import PickleFormat, StubObject

#: Maximum size of the pickle of one graph.
_MAX_BYTES = 256 << 20
_NUMBER = re.compile(r"^b1$|^[iu][1248]$|^f[248]$")
_TEXT = re.compile(r"^U\d{1,4}$")
_MAX_SCALAR_BYTES = 16 << 10


class GraphStub(StubObject):
    """A networkx graph; its state is the graph's `__dict__`."""

    __slots__ = ()


class _ViewStub(StubObject):
    """A cached view in a networkx graph, which is ignored."""

    __slots__ = ()

    def __init__(self, *args: object) -> None:
        super().__init__()


class RecordStub(StubObject):
    """An object with attributes only, such as `types.SimpleNamespace`."""

    __slots__ = ()


class _Dtype:
    """`numpy.dtype`: its text and byte order."""

    __slots__ = ("order", "text")

    def __init__(self, text: object = "", *_: object) -> None:
        self.text = text if isinstance(text, str) else ""
        self.order = "<"

    def __setstate__(self, state: Any) -> None:
        if isinstance(state, tuple) and len(state) > 1 and state[1] in ("<", ">", "|", "="):
            self.order = "<" if state[1] in ("|", "=") else state[1]

    def parse(self, data: object) -> Any:
        """Returns a scalar's bytes as a Python number or text."""
        text = self.text.lstrip("<>|=")
        is_known = _NUMBER.match(text) or _TEXT.match(text)
        if not is_known or not isinstance(data, bytes) or len(data) > _MAX_SCALAR_BYTES:
            raise pickle.UnpicklingError(f"a numpy scalar of type {self.text[:20]!r}")
        dtype = np.dtype(self.order + text)
        if len(data) != dtype.itemsize:
            raise pickle.UnpicklingError(f"{len(data)} bytes for a numpy scalar of {text}")
        return np.frombuffer(data, dtype)[0].item()


class _Call:
    """A function that pickles may call; it has no state."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable[..., Any]) -> None:
        self._function = function

    def __call__(self, *arguments: object) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: Any) -> None:
        raise pickle.UnpicklingError("state given to a function")


def _scalar(dtype: object, data: object = None) -> Any:
    """Returns a Python value from bytes, like `numpy.core.multiarray.scalar`."""
    if not isinstance(dtype, _Dtype):
        raise pickle.UnpicklingError("a numpy scalar without a type")
    return dtype.parse(data)


def _encode(text: object, encoding: object = "") -> bytes:
    """Returns the bytes that old protocols write as text, like `_codecs.encode`."""
    if not isinstance(text, str) or encoding != "latin1":
        raise pickle.UnpicklingError("_codecs.encode of something that is not bytes as text")
    return text.encode("latin1")


def _reconstruct(cls: object, base: object = None, state: object = None) -> StubObject:
    """Returns an empty instance of a stub class, like `copyreg._reconstructor`."""
    if not (isinstance(cls, type) and issubclass(cls, StubObject)) or state is not None:
        raise pickle.UnpicklingError("_reconstructor of something that is not a graph class")
    return cls()


_VIEWS = {
    "networkx.classes.reportviews": (
        "NodeView", "NodeDataView", "EdgeView", "OutEdgeView", "InEdgeView", "DiDegreeView",
        "DegreeView", "InDegreeView", "OutDegreeView", "EdgeDataView", "OutEdgeDataView",
    ),
    "networkx.classes.coreviews": ("AdjacencyView", "AtlasView"),
}  # fmt: skip
_RECORDS = (
    ("types", "SimpleNamespace"), ("features_define", "Feature"), ("features_define", "Args"),
    ("features_define", "MemoryInfo"),
)  # fmt: skip

GRAPH_PICKLES = PickleFormat(
    allowed={
        ("networkx.classes.digraph", "DiGraph"): GraphStub,
        ("networkx.classes.graph", "Graph"): GraphStub,
        **{(module, name): _ViewStub for module, names in _VIEWS.items() for name in names},
        **dict.fromkeys(_RECORDS, RecordStub),
        **{(module, "dict"): dict for module in ("builtins", "__builtin__")},
        **{(module, "object"): StubObject for module in ("builtins", "__builtin__")},
        **{(module, "_reconstructor"): _Call(_reconstruct) for module in ("copyreg", "copy_reg")},
        ("collections", "OrderedDict"): OrderedDict,
        ("_codecs", "encode"): _Call(_encode),
        ("numpy", "dtype"): _Dtype,
        ("numpy.core.multiarray", "scalar"): _Call(_scalar),
        ("numpy._core.multiarray", "scalar"): _Call(_scalar),
    },
    kind="graph",
    file="a published graph",
    names="networkx graphs and numpy scalars",
    expected="one graph a file, as in cg.zip",
    origin="where the data set is published",
    limit=_MAX_BYTES,
)


def plain(value: Any) -> Any:
    """Returns a record stub's attributes as a dictionary; other values unchanged."""
    if isinstance(value, RecordStub):
        return value.state if isinstance(value.state, dict) else {}
    return value
