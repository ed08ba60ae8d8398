"""Times of copies and collectives by message size, and insertion of copies between devices."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from cdmpp.analytic.embedding.memory_curve import MemoryCurve, bus_factor
from cdmpp.config import from_dict
from cdmpp.errors import UsageError
from cdmpp.replay.graph import COPY, Operator, OperatorGraph, predecessors


@dataclass(frozen=True)
class LinkOptions:
    """A connection: a bandwidth and a latency, or the three-piece curve of a sweep.

    Attributes:
        bytes_per_s: bandwidth of large messages.
        latency_s: time of the smallest messages.
        flat_log2, saturated_log2, height, centre, slope, base: see `MemoryCurve`; all or none.

    Raises:
        UsageError: the bandwidth is not positive, or the latency is negative.
    """

    bytes_per_s: float
    latency_s: float = 0.0
    flat_log2: float | None = None
    saturated_log2: float | None = None
    height: float | None = None
    centre: float | None = None
    slope: float | None = None
    base: float | None = None

    def __post_init__(self) -> None:
        if self.bytes_per_s <= 0 or self.latency_s < 0:
            raise UsageError(
                f"link: bytes_per_s is {self.bytes_per_s:g} and latency_s {self.latency_s:g}; "
                "expected a bandwidth above 0 and a time from 0 up"
            )

    def time_s(self, size_bytes: float, *, factor: float = 1.0) -> float:
        """Returns the seconds of a message.

        Args:
            size_bytes: payload.
            factor: bytes moved per byte of payload.
        """
        curve = self._curve()
        if curve is not None:
            return curve.time_s(size_bytes, bus_factor=factor)
        return self.latency_s + factor * size_bytes / self.bytes_per_s

    def _curve(self) -> MemoryCurve | None:
        values = (self.flat_log2, self.saturated_log2, self.height, self.centre, self.slope,
                  self.base)  # fmt: skip
        if all(value is None for value in values):
            return None
        if any(value is None for value in values):
            raise UsageError(
                "link: a curve needs flat_log2, saturated_log2, height, centre, slope and base; "
                "give all of them or none"
            )
        flat, saturated, *sigmoid = (float(value) for value in values if value is not None)
        return MemoryCurve(flat, saturated, self.bytes_per_s, self.latency_s, *sigmoid)


@dataclass(frozen=True)
class Links:
    """The connections between devices.

    Attributes:
        copy: between two devices, or host and device; None = unknown.
        collective: the bus shared by all devices, for collectives; None = unknown.
    """

    copy: LinkOptions | None = None
    collective: LinkOptions | None = None


def links_of(values: Mapping[str, Any]) -> Links:
    """Returns the links of a graph file.

    Raises:
        UsageError: unknown names, or values of the wrong type.
    """
    found = from_dict(_LinkValues, values)
    return Links(
        copy=from_dict(LinkOptions, found.copy) if found.copy else None,
        collective=from_dict(LinkOptions, found.collective) if found.collective else None,
    )


@dataclass(frozen=True)
class _LinkValues:
    copy: dict[str, Any] = field(default_factory=dict)
    collective: dict[str, Any] = field(default_factory=dict)


def transfer_s(operator: Operator, links: Links) -> float | None:
    """Returns the seconds of a copy or collective; None for other operators, or if the size or
    link is unknown.

    The bytes of a collective are the payload of one device; the bus factor of ml_perf_model
    converts them to bytes on the bus.
    """
    if operator.bytes is None:
        return None
    if operator.collective is not None:
        if links.collective is None:
            return None
        factor = bus_factor(operator.collective, max(1, len(operator.devices)))
        return links.collective.time_s(operator.bytes, factor=factor)
    if operator.kind == "copy" and links.copy is not None:
        return links.copy.time_s(operator.bytes)
    return None


def with_copies(graph: OperatorGraph, output_bytes: Mapping[str, float]) -> OperatorGraph:
    """Returns the graph with a copy on every edge between two devices.

    One copy serves all consumers on a device, and runs in the copy queue of that device. Edges
    from or to copies and collectives, which move data themselves, stay unchanged.

    Args:
        output_bytes: operator id -> bytes of its result; copies of missing ids get no size, and
            therefore no time.

    Raises:
        DataError: see `predecessors`.
    """
    predecessors(graph)
    by_id = {one.id: one for one in graph.operators}
    copies: dict[tuple[str, str], Operator] = {}
    changed = []
    for one in graph.operators:
        if one.collective is not None or one.kind == "copy":
            changed.append(one)
            continue
        after = []
        for name in one.after:
            producer = by_id[name]
            is_plain = producer.collective is None and producer.kind != "copy"
            if not is_plain or producer.device == one.device:
                after.append(name)
                continue
            key = (name, one.device)
            if key not in copies:
                copies[key] = Operator(
                    id=f"{name}.to.{one.device}", name=f"copy {producer.label} to {one.device}",
                    kind="copy", after=(name,), device=one.device, queue=COPY,
                    priority=producer.priority, bytes=output_bytes.get(name),
                )  # fmt: skip
            after.append(copies[key].id)
        changed.append(replace(one, after=tuple(after)))
    return replace(graph, operators=(*changed, *copies.values()))
