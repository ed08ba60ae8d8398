"""GPU kernels that torch launches for a network, eager or fused by inductor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from cdmpp.arrays import FloatArray
from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.kernels.element_types import (
    FLOAT32,
    LOWER_PRECISION,
    ElementTypes,
    element_types,
)

#: Kinds of kernels.
KERNELS = (
    "convolution", "pointwise convolution", "depthwise convolution", "grouped convolution",
    "product", "batched product", "attention", "norm", "batch norm", "softmax", "pool",
    "element-wise", "copy", "transposed copy", "cast", "reduction", "fused", "update",
)  # fmt: skip
#: Phases of a step.
PHASES = ("forward", "data gradient", "weight gradient", "update")
FORWARD, DATA_GRADIENT, WEIGHT_GRADIENT, UPDATE = range(len(PHASES))
COLUMNS = (
    "kind", "phase", "flop", "bytes", "m", "n", "k", "batch", "window", "stride", "is_half",
    "is_map", "count",
)  # fmt: skip

_FLOAT_BYTES = 4
_CODE = {name: code for code, name in enumerate(KERNELS)}
_COPIES = frozenset(
    {"Concat", "Pad", "Roll", "Stack", "Unfold", "Fold", "Repeat", "Tile", "Flip", "PixelShuffle",
     "PixelUnshuffle", "IndexSelect", "Gather", "Clone", "Cat", "Interpolate", "Upsample",
     "Embedding", "Index", "RepeatInterleave", "ChannelShuffle"}
)  # fmt: skip
_REDUCTIONS = frozenset(
    {"Mean", "GlobalAveragePool", "Sum", "Amax", "Amin", "Max", "LinalgVectorNorm", "Norm", "Var",
     "Std", "VarMean", "Prod", "Argmax", "Normalize", "Logsumexp"}
)  # fmt: skip
_NORMS = frozenset({"LayerNorm", "GroupNorm", "InstanceNorm", "RmsNorm", "LocalResponseNorm"})
_POOLS = frozenset({"MaxPool", "AveragePool", "AdaptiveMaxPool"})
#: Number of kernels that eager torch launches for an operator, if more than one.
_SEVERAL = {"Normalize": 4, "VarMean": 2, "MultiHeadAttention": 6}
_NAMED = (
    (_NORMS, "norm"), (frozenset({"BatchNormalization"}), "batch norm"),
    (frozenset({"Softmax", "LogSoftmax"}), "softmax"), (_POOLS, "pool"),
    (_REDUCTIONS, "reduction"), (_COPIES, "copy"),
)  # fmt: skip
_VIEW = "Flatten"
#: Operators whose output is always an image, with a memory format, and those for which it never is.
_MAKES_MAPS = frozenset(
    {"Conv", "ConvTranspose", "BatchNormalization", "GroupNorm", "InstanceNorm", *_POOLS}
)
_MAKES_NO_MAPS = frozenset({_VIEW, "LayerNorm", "RmsNorm", "Softmax", "LogSoftmax"})
_BARRIERS = frozenset(
    {"convolution", "pointwise convolution", "depthwise convolution", "grouped convolution",
     "product", "batched product", "attention"}
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class TorchKernels:
    """Kernels of one step.

    Attributes:
        rows: float64 [kernels, columns], see `COLUMNS`; equal kernels are one row with a `count`.
        calls: number of operators that the host dispatches.
    """

    rows: FloatArray
    calls: float

    def column(self, name: str) -> FloatArray:
        """Returns float64 [kernels], a column of `COLUMNS`."""
        return self.rows[:, COLUMNS.index(name)]


def torch_kernels(graph: NetworkGraph, execution: Execution) -> TorchKernels:
    """Returns the kernels of one step of a network.

    Eager torch launches a kernel per operator, per tensor that autocast casts, and per tensor that
    is copied into another memory order. Inductor calls libraries for products and convolutions and
    fuses the operators between them (`fused_groups`). A training step has backward kernels for
    every operator (two for products and convolutions) and an update of every weight.
    """
    maker = _Maker(graph, execution)
    return maker.table()


def fused_groups(graph: NetworkGraph) -> list[list[int]]:
    """Returns the groups of operators that inductor fuses into one kernel: neighbours that depend
    on the same number of successive products and convolutions. Groups of views only are left out.
    """
    count, sources = len(graph.kinds), graph.sources()
    waits = [_what(graph, node) in _BARRIERS for node in range(count)]
    level, place = [0] * count, list(range(count))

    def root(node: int) -> int:
        while place[node] != node:
            place[node] = place[place[node]]
            node = place[node]
        return node

    for node in range(count):
        for source in sources[node]:
            level[node] = max(level[node], level[source] + waits[source])
        if waits[node]:
            continue
        for source in sources[node]:
            if not waits[source] and level[source] == level[node]:
                place[root(node)] = root(source)
    found: dict[int, list[int]] = {}
    for node in range(count):
        if not waits[node]:
            found.setdefault(root(node), []).append(node)
    return [
        members for members in found.values() if any(graph.kinds[one] != _VIEW for one in members)
    ]


def _what(graph: NetworkGraph, node: int) -> str:
    """Returns the kind of an operator's kernel, of `KERNELS`."""
    kind = graph.kinds[node]
    if kind in ("Conv", "ConvTranspose"):
        groups = graph.column("conv_groups")[node]
        if groups > 1:
            is_depthwise = groups >= graph.column("input_channels")[node]
            return "depthwise convolution" if is_depthwise else "grouped convolution"
        is_pointwise = graph.column("conv_kernel_size")[node] == 1
        return "pointwise convolution" if is_pointwise else "convolution"
    if kind == "Gemm":
        return "product"
    if kind in LOWER_PRECISION and "Attention" in kind:
        return "attention"
    if kind in LOWER_PRECISION and kind != "Prelu":
        return "batched product"
    return next((what for kinds, what in _NAMED if kind in kinds), "element-wise")


class _Maker:
    """Builds the kernels of one network in one execution."""

    def __init__(self, graph: NetworkGraph, execution: Execution) -> None:
        self._graph, self._execution = graph, execution
        self._types: ElementTypes = element_types(graph, execution)
        self._columns = {
            name: graph.column(name).tolist()
            for name in (
                "weight_size", "input_size", "input_channels", "output_size", "output_channels",
                "output_w", "output_h", "conv_kernel_size", "conv_stride", "conv_groups",
                "linear_in_features", "linear_out_features", "pool_kernel_size",
            )
        }  # fmt: skip
        count = len(graph.kinds)
        self._sources = graph.sources()
        self._readers = graph.readers()
        self._does = [_what(graph, node) for node in range(count)]
        self._is_map = self._maps()
        self._copied = (graph.copied(execution.layout) / _FLOAT_BYTES).tolist()
        self._rows: list[tuple[float, ...]] = []
        self._calls = 0.0

    def table(self) -> TorchKernels:
        if self._execution.compiled:
            self._compiled()
        else:
            self._eager()
        if self._execution.mode == "train":
            self._train()
        rows, places = np.unique(
            np.array(self._rows).reshape(-1, len(COLUMNS)), axis=0, return_inverse=True
        )
        rows[:, -1] *= np.bincount(places.ravel())
        return TorchKernels(rows, self._calls)

    def _maps(self) -> list[bool]:
        """Returns for each operator whether its output is an image, by its kind or its inputs."""
        found: list[bool] = []
        for node, kind in enumerate(self._graph.kinds):
            sources = self._sources[node]
            is_map = kind in _MAKES_MAPS
            if not is_map and kind not in _MAKES_NO_MAPS and self._does[node] not in _BARRIERS:
                is_map = not sources or any(found[source] for source in sources)
            found.append(is_map)
        return found

    # Sizes and bytes of an operator.

    def _sizes(self, node: int) -> tuple[float, float, float, float]:
        """Returns m (rows), n (columns), k (reduction) and batch."""
        column, what = self._columns, self._does[node]
        outputs = column["output_size"][node] / _FLOAT_BYTES
        channels = max(column["output_channels"][node], 1.0)
        flop = float(self._graph.flops[node])
        if "convolution" in what:
            groups = max(column["conv_groups"][node], 1.0)
            window = max(column["conv_kernel_size"][node], 1.0) ** 2
            return (
                outputs / channels, channels / groups,
                max(column["input_channels"][node] / groups, 1.0) * window, groups,
            )  # fmt: skip
        if what == "product":
            width = max(column["linear_out_features"][node], 1.0)
            return outputs / width, width, max(column["linear_in_features"][node], 1.0), 1.0
        m, n = max(column["output_h"][node], 1.0), max(column["output_w"][node], 1.0)
        if what == "attention":
            inner = flop * n / max(outputs, 1.0)  # 4 n d + 5 n operations per row
            keys = max(inner / (4 * n + 5), 1.0)
            return m, keys, n, max(outputs / (m * n), 1.0)
        if what == "batched product":
            return m, n, max(flop / (2 * max(outputs, 1.0)), 1.0), max(outputs / (m * n), 1.0)
        inputs = max(column["input_size"][node] / _FLOAT_BYTES, 1.0)
        if what in ("norm", "softmax"):
            width = max(column["weight_size"][node] / (2 * _FLOAT_BYTES), 1.0)
            width = n if what == "softmax" else width
            return outputs / width, width, 1.0, 1.0
        if what == "reduction":
            return max(outputs, 1.0), 1.0, max(inputs / max(outputs, 1.0), 1.0), 1.0
        if what == "pool":
            return outputs, 1.0, max(column["pool_kernel_size"][node], 1.0) ** 2, 1.0
        return outputs, 1.0, 1.0, 1.0

    def _bytes(self, node: int) -> tuple[float, float, float]:
        """Returns bytes read, bytes of weights and bytes written, in the execution's types."""
        kind, column = self._graph.kinds[node], self._columns
        reads, makes = int(self._types.computes[node]), int(self._types.makes[node])
        weights = column["weight_size"][node] * self._weight_width(node) / _FLOAT_BYTES
        if kind == "Embedding":
            weights = min(weights, column["output_size"][node] * makes / _FLOAT_BYTES)
        return (
            column["input_size"][node] * reads / _FLOAT_BYTES, weights,
            column["output_size"][node] * makes / _FLOAT_BYTES,
        )  # fmt: skip

    def _weight_width(self, node: int) -> int:
        is_cast = self._graph.kinds[node] in LOWER_PRECISION
        return int(self._types.computes[node]) if is_cast else self._types.weights

    def _is_view(self, node: int) -> bool:
        return self._graph.kinds[node] == _VIEW

    def _add(
        self, what: str, flop: float, moved: float, sizes: Sequence[float], *, phase: int = FORWARD,
        node: int | None = None, is_half: bool = False,
    ) -> None:  # fmt: skip
        m, n, k, batch = sizes
        window = self._columns["conv_kernel_size"][node] if node is not None else 0.0
        stride = self._columns["conv_stride"][node] if node is not None else 0.0
        is_map = node is not None and self._is_map[node]
        self._rows.append(
            (
                _CODE[what], phase, flop, moved, m, n, k, batch, window, stride, float(is_half),
                float(is_map), 1.0,
            )
        )  # fmt: skip

    def _add_node(self, node: int) -> None:
        is_half = self._does[node] in _BARRIERS and int(self._types.computes[node]) < _FLOAT_BYTES
        self._add(
            self._does[node], float(self._graph.flops[node]), sum(self._bytes(node)),
            self._sizes(node), node=node, is_half=is_half,
        )  # fmt: skip

    def _add_copies(self, phase: int) -> None:
        """Adds copies of tensors into the memory order that their reader needs."""
        for node, elements in enumerate(self._copied):
            if elements:
                moved, sizes = (
                    2 * elements * int(self._types.makes[node]),
                    (elements, 1.0, 1.0, 1.0),
                )
                self._add("transposed copy", 0.0, moved, sizes, phase=phase, node=node)
                self._calls += 1.0

    def _cast(self, elements: float, read: int, write: int) -> None:
        self._add("cast", 0.0, elements * (read + write), (elements, 1.0, 1.0, 1.0))

    def _cast_weights(self) -> None:
        """Adds one cast per weight and step; autocast caches the casts during a step."""
        if not self._execution.is_autocast:
            return
        for node, kind in enumerate(self._graph.kinds):
            size = self._columns["weight_size"][node] / _FLOAT_BYTES
            if kind in LOWER_PRECISION and size:
                self._cast(size, _FLOAT_BYTES, 2)
                self._calls += 1.0

    # Eager torch.

    def _eager(self) -> None:
        self._cast_weights()
        for node, kind in enumerate(self._graph.kinds):
            if self._is_view(node):
                continue
            wanted = int(self._types.computes[node])
            if self._execution.is_autocast:
                for read, elements in self._read(node):
                    if read != wanted and self._is_cast(kind):
                        self._cast(elements, read, wanted)
                        self._calls += 1.0
            self._add_node(node)
            self._calls += _SEVERAL.get(kind, 1)
        self._add_copies(FORWARD)

    def _is_cast(self, kind: str) -> bool:
        """Returns whether autocast casts an operator's inputs; other kernels mix types."""
        return kind in LOWER_PRECISION or kind in FLOAT32

    def _read(self, node: int) -> list[tuple[int, float]]:
        """Returns (bytes per element, elements) of an operator's inputs."""
        size = self._columns["input_size"][node] / _FLOAT_BYTES
        sources = self._sources[node]
        if not sources:
            return [(self._types.inputs, size)]
        sizes = [self._columns["output_size"][source] for source in sources]
        total = sum(sizes) or 1.0
        return [
            (int(self._types.makes[source]), size * one / total)
            for source, one in zip(sources, sizes, strict=True)
        ]

    # Inductor.

    def _compiled(self) -> None:
        self._cast_weights()
        for node in range(len(self._graph.kinds)):
            if self._does[node] in _BARRIERS and not self._is_view(node):
                self._add_node(node)
                self._calls += 1.0
        for members in fused_groups(self._graph):
            self._add_fused(members)
            self._calls += 1.0

    def _add_fused(self, members: list[int]) -> None:
        inside = set(members)
        moved = flop = 0.0
        read: set[int] = set()
        sizes = self._columns["output_size"]
        for node in members:
            flop += float(self._graph.flops[node])
            moved += self._columns["weight_size"][node]
            outside = [source for source in self._sources[node] if source not in inside]
            if not self._sources[node]:
                moved += self._columns["input_size"][node] * self._types.inputs / _FLOAT_BYTES
            for source in outside:
                if source not in read:
                    read.add(source)
                    moved += sizes[source] * int(self._types.makes[source]) / _FLOAT_BYTES
            readers = [one for one in self._readers[node] if one not in inside]
            if readers or not self._readers[node]:
                width = {
                    2 if self._graph.kinds[one] in LOWER_PRECISION and self._execution.is_half
                    else int(self._types.makes[node])
                    for one in readers
                } or {int(self._types.makes[node])}  # fmt: skip
                moved += sizes[node] * sum(width) / _FLOAT_BYTES
        has = {self._does[node] for node in members}
        kept = next(
            (what for what in ("norm", "softmax", "reduction", "pool", "batch norm", "copy")
             if what in has), "fused",
        )  # fmt: skip
        lead = next((node for node in members if self._does[node] == kept), members[0])
        self._add(kept, flop, moved, (*self._sizes(lead)[:3], float(len(members))), node=lead)

    # The backward pass and the update.

    def _train(self) -> None:
        if not self._execution.compiled:
            self._add_copies(DATA_GRADIENT)
        for node in range(len(self._graph.kinds)):
            if self._is_view(node):
                continue
            what = self._does[node]
            read, weight, written = self._bytes(node)
            flop = float(self._graph.flops[node])
            m, n, k, batch = self._sizes(node)
            is_half = what in _BARRIERS and int(self._types.computes[node]) < _FLOAT_BYTES
            has_products = what in _BARRIERS
            if self._sources[node] or not has_products:
                moved = read + weight + written if has_products else 2 * read + written
                self._add(
                    what, flop, moved, (m, k, n, batch) if has_products else (m, n, k, batch),
                    phase=DATA_GRADIENT, node=node, is_half=is_half,
                )  # fmt: skip
                self._calls += 1.0
            if has_products and what != "attention":
                self._add(
                    what, flop, read + weight + written, (k, n, m, batch), phase=WEIGHT_GRADIENT,
                    node=node, is_half=is_half,
                )  # fmt: skip
                self._calls += 1.0
            if self._columns["weight_size"][node]:
                size = self._columns["weight_size"][node]
                self._add(
                    "update", size / 2, 5 * size, (size / _FLOAT_BYTES, 1.0, 1.0, 1.0), phase=UPDATE
                )
                self._calls += 2.0
