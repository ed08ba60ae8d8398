"""Assembles a `NetworkGraph` from operators in execution order."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from cdmpp.errors import DataError
from cdmpp.networks.account import Account
from cdmpp.networks.graph.execution import Layout
from cdmpp.networks.graph.graph import ARGUMENTS, MEMORY, NetworkGraph
from cdmpp.networks.graph.hidden_copies import copied_size, projection_copies
from cdmpp.networks.graph.operator import CHANNELS_SECOND, OperatorCall, describe, layout, parts_of
from cdmpp.networks.graph.torch_names import refine

_ARGUMENT_PLACE = {name: place for place, name in enumerate(ARGUMENTS)}


@dataclass
class Assembler:
    """Collects operators and their edges.

    Attributes:
        name: name of the network.
        batch: batch size.
        layout: memory format in which the network is traced.
    """

    name: str
    batch: int
    layout: Layout = "nchw"
    _kinds: list[str] = field(default_factory=list)
    _arguments: list[list[float]] = field(default_factory=list)
    _memory: list[list[float]] = field(default_factory=list)
    _flops: list[float] = field(default_factory=list)
    _accounts: list[Account] = field(default_factory=list)
    _edges: set[tuple[int, int]] = field(default_factory=set)
    _scopes: list[tuple[str, ...]] = field(default_factory=list)
    _until: dict[int, int] = field(default_factory=dict)
    _copied: dict[int, int] = field(default_factory=dict)

    def add(
        self, operator: OperatorCall, sources: Iterable[int], scopes: Iterable[str] = ()
    ) -> int:
        """Appends an operator that reads the outputs of the nodes `sources`; returns its number.

        Args:
            scopes: ids of the module calls in which the operator runs.
        """
        node = len(self._kinds)
        described = describe(operator)
        arguments = [0.0] * len(ARGUMENTS)
        for name, value in described.arguments.items():
            arguments[_ARGUMENT_PLACE[name]] = value
        self._kinds.append(described.kind)
        self._arguments.append(arguments)
        self._memory.append(_memory_row(operator, self.batch))
        self._flops.append(described.flops)
        self._accounts.append(described.account)
        self._scopes.append(tuple(scopes))
        self._edges.update((source, node) for source in sources)
        return node

    def record(
        self, call: OperatorCall, sources: tuple[int, ...], scopes: Iterable[str] = ()
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Appends the operators of a torch call: one, several in sequence, or none for a view.

        Returns:
            The nodes that made its output, and the operators of the call; for a view, the operator
            before it.
        """
        before, after = ([info.shape for info in part] for part in (call.inputs, call.outputs))
        name = refine(call.name, before, after, len(call.weights))
        copied = copied_size(call, self.layout)
        if name is None:
            for source in sources[-1:]:
                self._copied[source] = self._copied.get(source, 0) + copied
            return sources, sources[-1:]
        parts = parts_of(replace(call, name=name))
        copies = projection_copies(call) if len(parts) > 1 else [copied]
        self._copied |= {len(self._kinds) + place: size for place, size in enumerate(copies)}
        added: list[int] = []
        for part in parts:
            sources = (self.add(part, sources, scopes),)
            added += sources
        return sources, tuple(added)

    def let_go(self, nodes: Iterable[int]) -> None:
        """Records that the code has just released the outputs of `nodes`."""
        for node in nodes:
            self._until[node] = max(self._until.get(node, 0), len(self._kinds) - 1)

    def graph(self) -> NetworkGraph:
        """Returns the network.

        Raises:
            DataError: the network has no operator.
        """
        if not self._kinds:
            raise DataError(f"{self.name}: the module has no operator; expected at least one")
        edges = np.array(sorted(self._edges), dtype=np.int64).reshape(-1, 2)
        return NetworkGraph(
            name=self.name,
            batch=self.batch,
            kinds=tuple(self._kinds),
            arguments=np.array(self._arguments, dtype=np.float64),
            memory=np.array(self._memory, dtype=np.float64),
            flops=np.array(self._flops, dtype=np.float64),
            edges=edges,
            holds=self._holds(),
            copies=self._copies(),
            accounts=tuple(self._accounts),
        )

    def _copies(self) -> NDArray[np.float64]:
        """Returns [nodes, 2] bytes of implicit copies, equal for both memory formats."""
        sizes = [float(self._copied.get(node, 0)) for node in range(len(self._kinds))]
        return np.repeat(np.array(sizes)[:, None], 2, axis=1)

    def _holds(self) -> NDArray[np.int64]:
        """Returns the tensors that outlive their readers: those that the code releases later, and
        inputs of a module, which its caller keeps until the module returns.
        """
        last: dict[str, int] = {}
        for node, scopes in enumerate(self._scopes):
            last.update(dict.fromkeys(scopes, node))
        readers: dict[int, int] = {}
        until = dict(self._until)
        for source, target in self._edges:
            readers[source] = max(readers.get(source, 0), target)
            for scope in set(self._scopes[target]) - set(self._scopes[source]):
                until[source] = max(until.get(source, 0), last[scope])
        pairs = sorted((node, end) for node, end in until.items() if end > readers.get(node, node))
        return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def _memory_row(operator: OperatorCall, batch: int) -> list[float]:
    """Returns the columns of `MEMORY`; channels, width and height are of the first tensor."""
    weights = sum(info.size for info in operator.weights)
    inputs = sum(info.size for info in operator.inputs)
    outputs = sum(info.size for info in operator.outputs)
    channels_last = operator.name not in CHANNELS_SECOND
    before = layout(operator.inputs[0] if operator.inputs else None, channels_last=channels_last)
    after = layout(operator.outputs[0] if operator.outputs else None, channels_last=channels_last)
    read = weights
    if operator.name == "embedding":
        read = min(weights, outputs)  # the rows that are looked up
    elif operator.name == "embedding_bag" and operator.inputs and operator.weights:
        table = operator.weights[0]
        read = min(weights, operator.inputs[0].count * table.size // max(table.shape[0], 1))
    row = {
        "bytes": inputs + read + outputs,
        "weight_size": weights,
        "batch_size": batch,
        "input_size_with_weight": inputs + weights,
        "input_size": inputs,
        "input_channels": before[0],
        "input_w": before[1],
        "input_h": before[2],
        "output_size": outputs,
        "output_channels": after[0],
        "output_w": after[1],
        "output_h": after[2],
    }
    return [float(row[name]) for name in MEMORY]
