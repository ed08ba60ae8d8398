"""Operator graph of a network at one batch size, the input of the whole-network models."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.networks.account import Account
from cdmpp.networks.graph.execution import LAYOUTS, Dtype, Layout

#: Published kinds of operators, in the published order; all other kinds are `OTHER`.
KINDS = (
    "Conv", "Relu", "BatchNormalization", "Concat", "AveragePool", "GlobalAveragePool", "Flatten",
    "Gemm", "MaxPool", "Add",
)  # fmt: skip
OTHER = "Other"
#: Columns of `NetworkGraph.arguments`; absent arguments are 0.
ARGUMENTS = (
    "conv_kernel_size", "conv_stride", "conv_padding", "conv_dilation", "conv_groups", "conv_bias",
    "linear_in_features", "linear_out_features", "linear_bias",
    "pool_kernel_size", "pool_stride", "pool_padding", "pool_ceil_mode",
)  # fmt: skip
#: Columns of `NetworkGraph.memory`. Sizes are in bytes; `bytes` is the traffic of the operator
#: (inputs + weights + outputs). Channels, widths and heights are counts.
MEMORY = (
    "bytes", "weight_size", "batch_size", "input_size_with_weight", "input_size", "input_channels",
    "input_w", "input_h", "output_size", "output_channels", "output_w", "output_h",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class NetworkGraph:
    """A network's operators in topological order.

    Attributes:
        name: name of the network.
        batch: batch size.
        kinds: [nodes] kind of each operator: of `KINDS`, else the operator's own name.
        arguments: [nodes, 13] float64, columns `ARGUMENTS`.
        memory: [nodes, 12] float64, columns `MEMORY`.
        flops: [nodes] float64, floating-point operations (a multiply-add is two).
        edges: [edges, 2] int64, source and target node of every tensor, sorted.
        holds: [holds, 2] int64, sorted: the code keeps the output of the first node until the
            second has run, although nothing reads it any more (the caller of a module keeps its
            input).
        copies: [nodes, 2] float64, bytes of implicit copies of an operator's inputs or output into
            the needed memory order; one column for each of `LAYOUTS`.
        accounts: [nodes] accounts of the operators' work; empty = not stored (graphs of a data
            set).
        weights: type of the weights; the bytes of the graph are always those of float32.
        is_compiled: whether the module came from `torch.compile`.
        parameters, trained: number of elements of the module's weights, each counted once, and of
            its trainable weights; 0 = not counted.

    Raises:
        DataError: inconsistent shapes, an edge to an unknown node or against the order.
    """

    name: str
    batch: int
    kinds: tuple[str, ...]
    arguments: NDArray[np.float64]
    memory: NDArray[np.float64]
    flops: NDArray[np.float64]
    edges: NDArray[np.int64]
    holds: NDArray[np.int64] = field(default_factory=lambda: np.zeros((0, 2), np.int64))
    copies: NDArray[np.float64] = field(default_factory=lambda: np.zeros((0, len(LAYOUTS))))
    accounts: tuple[Account, ...] = ()
    weights: Dtype = "float32"
    is_compiled: bool = False
    parameters: int = 0
    trained: int = 0

    def __post_init__(self) -> None:
        count = len(self.kinds)
        shapes = {
            "arguments": (self.arguments.shape, (count, len(ARGUMENTS))),
            "memory": (self.memory.shape, (count, len(MEMORY))),
            "flops": (self.flops.shape, (count,)),
            "edges": (self.edges.shape, (len(self.edges), 2)),
            "holds": (self.holds.shape, (len(self.holds), 2)),
        }
        for what, (got, expected) in shapes.items():
            if got != expected:
                raise DataError(f"{self.name}: `{what}` has shape {got}, expected {expected}")
        if self.copies.shape not in ((0, len(LAYOUTS)), (count, len(LAYOUTS))):
            raise DataError(f"{self.name}: `copies` has shape {self.copies.shape}")
        if len(self.accounts) not in (0, count):
            raise DataError(f"{self.name}: {len(self.accounts)} accounts for {count} operators")
        if count == 0:
            raise DataError(f"{self.name}: a network without operators; expected at least one")
        if self.batch < 1:
            raise DataError(f"{self.name}: batch {self.batch}; expected at least 1")
        for what, pairs in (("an edge", self.edges), ("a hold", self.holds)):
            if len(pairs) and (pairs.min() < 0 or pairs.max() >= count):
                raise DataError(f"{self.name}: {what} has an unknown operator (of {count})")
        if (self.edges[:, 0] >= self.edges[:, 1]).any():
            raise DataError(f"{self.name}: an edge against the order; expected no cycle")

    @property
    def graph_id(self) -> str:
        """Hash of the content: equal graphs have equal ids. The name, `holds`, `copies`, `accounts`
        and the execution are excluded, because they depend on how the code is written and run.
        """
        text = json.dumps([self.batch, *self.kinds])
        content = hashlib.sha256(text.encode())
        for array in (self.arguments, self.memory, self.flops, self.edges):
            content.update(np.ascontiguousarray(array).tobytes())
        return content.hexdigest()[:32]

    def sources(self) -> list[list[int]]:
        """Returns for each node the nodes whose output it reads."""
        found: list[list[int]] = [[] for _ in self.kinds]
        for source, target in self.edges.tolist():
            found[target].append(source)
        return found

    def readers(self) -> list[list[int]]:
        """Returns for each node the nodes that read its output."""
        found: list[list[int]] = [[] for _ in self.kinds]
        for source, target in self.edges.tolist():
            found[source].append(target)
        return found

    def copied(self, layout: Layout) -> NDArray[np.float64]:
        """Returns [nodes] the bytes of `copies` in a memory format; 0 if they are not stored."""
        if not len(self.copies):
            return np.zeros(len(self.kinds))
        return self.copies[:, LAYOUTS.index(layout)]

    def column(self, name: str) -> NDArray[np.float64]:
        """Returns [nodes] one column of `ARGUMENTS` or `MEMORY`."""
        if name in ARGUMENTS:
            return self.arguments[:, ARGUMENTS.index(name)]
        return self.memory[:, MEMORY.index(name)]
