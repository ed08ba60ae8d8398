"""Costs of operators: sources that know them, and a roofline estimate for the rest."""

from __future__ import annotations

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cdmpp.analytic.roofline.floor import LEAST_SHARE, least_kernel_s
from cdmpp.analytic.roofline.programs import bound_s
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.replay.graph import Operator, OperatorGraph
from cdmpp.replay.transfers import Links, transfer_s
from cdmpp.text import seconds_text

Source = Literal["given", "measured", "model", "records", "analytic", "link", "bound"]

#: Operators that read their tensors several times.
_SORTS = frozenset({"argsort", "sort", "topk", "unique"})
_SCANS = frozenset({"cumprod", "cumsum"})
#: Assumed seconds of a call with unknown operations and bytes.
NOMINAL_CALL_S = 1e-6


@dataclass(frozen=True)
class OperatorCost:
    """Seconds of an operator.

    Attributes:
        latency_s: above 0 unless it was given as 0.
        low_s, high_s: its interval; both equal to `latency_s` if the source has none.
        source: source of the value.
        reason: for `bound`: why no source knows the cost; for other sources a remark or empty.
        draws_s: seconds under each draw of its schedule; empty without draws.
        own_width: part of the interval's half width (of the logarithm, added in squares) that is
            independent between kernels and averages out over a network.
    """

    latency_s: float
    low_s: float
    high_s: float
    source: Source
    reason: str = ""
    draws_s: tuple[float, ...] = ()
    own_width: float = 0.0

    @property
    def has_interval(self) -> bool:
        """Whether the error of the source is known."""
        return self.low_s < self.high_s

    @property
    def ends_s(self) -> tuple[float, float] | tuple[None, None]:
        """The interval, or two None without one."""
        return (self.low_s, self.high_s) if self.has_interval else (None, None)

    @property
    def shared_low_s(self) -> float:
        """Lower end without the own part; never below `low_s`, where a lower bound may hold it."""
        if not self.own_width or self.low_s <= 0:
            return self.low_s
        width = max(self._shared_width(self.low_s), self._shared_width(self.high_s))
        return max(self.low_s, self.latency_s * math.exp(-width))

    @property
    def shared_high_s(self) -> float:
        """Upper end without the own part."""
        if not self.own_width:
            return self.high_s
        return self.latency_s * math.exp(self._shared_width(self.high_s))

    def _shared_width(self, end_s: float) -> float:
        return math.sqrt(max(math.log(end_s / self.latency_s) ** 2 - self.own_width**2, 0.0))


def exact(latency_s: float, source: Source) -> OperatorCost:
    """Returns a cost without an interval."""
    return OperatorCost(latency_s, latency_s, latency_s, source)


class CostSource(ABC):
    """Base class of sources that know the cost of some operators."""

    @abstractmethod
    def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
        """Returns operator id -> cost for the operators that it knows."""

    def reasons(self) -> dict[str, str]:
        """Returns operator id -> why a requested cost is unknown."""
        return {}


class GivenTimes(CostSource):
    """Times in the graph, and times of a table by id, name, task or kind.

    Args:
        table: seconds; takes precedence over the graph.
        graph_source: source of the times in the graph.
    """

    def __init__(
        self, table: Mapping[str, float] | None = None, *, graph_source: Source = "given"
    ) -> None:
        self._table, self._source = dict(table or {}), graph_source

    def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
        """Returns operator id -> cost of operators with a time.

        Raises:
            UsageError: an entry of the table matches no operator.
        """
        found: dict[str, OperatorCost] = {}
        used: set[str] = set()
        for one in graph.operators:
            key = next(
                (k for k in (one.id, one.name, one.task, one.kind) if k and k in self._table), None
            )
            if key is not None:
                used.add(key)
                found[one.id] = exact(self._table[key], "given")
            elif one.time_s is not None:
                low = one.time_s if one.low_s is None else one.low_s
                high = one.time_s if one.high_s is None else one.high_s
                found[one.id] = OperatorCost(one.time_s, low, high, self._source)
        unused = sorted(set(self._table) - used)
        if unused:
            kinds = ", ".join(sorted({one.kind or one.label for one in graph.operators})[:12])
            raise UsageError(
                f"times were given for {', '.join(map(repr, unused))}, which is not an id, name, "
                f"task or kind of an operator; known kinds: {kinds}"
            )
        return found


class LinkTimes(CostSource):
    """Times of copies and collectives by message size."""

    def __init__(self, links: Links) -> None:
        self._links = links

    def costs(self, graph: OperatorGraph) -> dict[str, OperatorCost]:
        """Returns operator id -> cost of copies and collectives over known links."""
        found = {}
        for one in graph.operators:
            seconds = transfer_s(one, self._links)
            if seconds is not None:
                found[one.id] = exact(seconds, "link")
        return found


@dataclass(frozen=True)
class GraphCosts:
    """Costs of a graph's operators, in the graph's order."""

    graph: OperatorGraph
    costs: tuple[OperatorCost, ...]

    @property
    def times_s(self) -> list[float]:
        """Seconds of each operator."""
        return [cost.latency_s for cost in self.costs]

    @property
    def low_s(self) -> list[float]:
        """Lower ends without each operator's own part."""
        return [cost.shared_low_s for cost in self.costs]

    @property
    def high_s(self) -> list[float]:
        """Upper ends without each operator's own part."""
        return [cost.shared_high_s for cost in self.costs]

    @property
    def own_width(self) -> float:
        """Half width that the kernels' own parts add to the total (of the logarithm, in squares):
        calls of one kernel have the same error, different kernels have independent errors.
        """
        own: dict[str, float] = {}
        for one, cost in zip(self.graph.operators, self.costs, strict=True):
            key = one.task or one.id
            own[key] = own.get(key, 0.0) + cost.own_width * cost.latency_s
        return math.hypot(*own.values()) / (sum(self.times_s) or 1.0)

    @property
    def uncovered(self) -> list[tuple[Operator, OperatorCost]]:
        """The operators with only a bound."""
        pairs = zip(self.graph.operators, self.costs, strict=True)
        return [(one, cost) for one, cost in pairs if cost.source == "bound"]

    def draw_count(self) -> int:
        """Returns the number of schedule draws; 0 = none."""
        return max((len(cost.draws_s) for cost in self.costs), default=0)

    def drawn_s(self, draw: int) -> list[float]:
        """Returns the seconds of each operator under one draw."""
        return [cost.draws_s[draw] if cost.draws_s else cost.latency_s for cost in self.costs]


def gather_costs(
    graph: OperatorGraph, sources: Sequence[CostSource], devices: Mapping[str, DeviceSpec]
) -> GraphCosts:
    """Returns the cost of every operator, from the first source that knows it or a bound.

    Args:
        devices: label in the graph -> hardware.

    Raises:
        DeviceError: an operator needs a bound and its device is unknown.
        DataError: a source returns a negative, infinite or unordered interval.
    """
    found: dict[str, OperatorCost] = {}
    reasons: dict[str, str] = {}
    for source in sources:
        found = source.costs(graph) | found
        for name, reason in source.reasons().items():
            reasons.setdefault(name, reason)
    costs = []
    for one in graph.operators:
        cost = found.get(one.id) or bound(
            one, _device_of(one, devices), reasons.get(one.id, "no model for it")
        )
        if not 0 <= cost.low_s <= cost.latency_s <= cost.high_s < math.inf:
            raise DataError(
                f"operator {one.id!r}: {cost.source} gives {cost.latency_s!r} s in "
                f"[{cost.low_s!r}, {cost.high_s!r}]; expected seconds from 0 up in order"
            )
        costs.append(cost)
    return GraphCosts(graph, tuple(costs))


def bound(one: Operator, device: DeviceSpec, reason: str) -> OperatorCost:
    """Returns the roofline time of an operator; its upper end is that time over `LEAST_SHARE`.

    An operator without operations and bytes counts as a nominal call. No operator takes less than
    the smallest kernel of the device.
    """
    least_s = least_kernel_s(device)
    if not one.flop and not one.bytes:
        call_s = max(NOMINAL_CALL_S, least_s)
        return OperatorCost(
            call_s, max(LEAST_SHARE * call_s, least_s), call_s / LEAST_SHARE, "bound",
            f"{reason}; its operations and bytes are unknown, one call takes "
            f"{seconds_text(call_s)}",
        )  # fmt: skip
    seconds = float(bound_s(device, one.flop or 0.0, one.bytes or 0.0))
    if seconds < least_s:
        return OperatorCost(
            least_s, least_s, least_s / LEAST_SHARE, "bound",
            f"{reason}; the smallest kernel of {device.name}",
        )  # fmt: skip
    unknown = [
        name
        for name, value in (("peak", device.peak_fp32_flop_per_s),
                            ("bandwidth", device.mem_bandwidth_bytes_per_s))
        if not value
    ]  # fmt: skip
    assumed = (
        f"; {' and '.join(unknown)} of {device.name} unknown, nominal values used"
        if unknown
        else ""
    )
    passes = _passes(one)
    often = f" of {passes:.0f} passes over its tensors" if passes > 1 else ""
    return OperatorCost(
        passes * seconds, seconds, passes * seconds / LEAST_SHARE, "bound",
        f"{reason}; roofline estimate{often}{assumed}",
    )  # fmt: skip


def _passes(one: Operator) -> float:
    """Returns the approximate number of passes of an operator over its tensors: log2 of the length
    for a sort, 2 for a scan, otherwise 1.
    """
    name = re.split(r"[.:]+", one.kind)[-1]
    if name in _SCANS:
        return 2.0
    length = one.shapes[0].rpartition("x")[2] if one.shapes else ""
    if name not in _SORTS or not length.isdecimal():
        return 1.0
    return math.log2(max(int(length), 2))


def _device_of(one: Operator, devices: Mapping[str, DeviceSpec]) -> DeviceSpec:
    device = devices.get(one.device)
    if device is None:
        raise DeviceError(
            f"operator {one.id!r} has no time, and its device {one.device!r} is unknown; give it "
            "a time, or set the hardware with --device LABEL (see `cdmpp device list`)"
        )
    return device
