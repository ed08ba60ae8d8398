"""A cell of a comparison: a network on a device, with the quantities derived from its latency."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cdmpp.comparison.llm.times import LayerOperator
from cdmpp.comparison.prices import Price
from cdmpp.text import interval_text

Objective = Literal["latency", "throughput", "cost", "energy"]
OBJECTIVES: tuple[Objective, ...] = ("latency", "throughput", "cost", "energy")
_HOUR_S = 3600.0
_MILLION = 1e6
_GIB = 1024.0**3


@dataclass(frozen=True)
class CompareCell:
    """A network on a device, or on several that share it.

    Attributes:
        network: display name, with its pass.
        batch: samples or sequences per run.
        device: label.
        degree: number of devices that share the network.
        item: unit of counting: an inference, a sample of a training step, or a token.
        items: items per run.
        latency_s: seconds per run; None = unknown, see `reasons`.
        low_s, high_s: ends of its interval; None = unknown.
        method: name of the model that predicted; empty if none did.
        memory_bytes: need of one device; None = unknown.
        memory_limit_bytes: memory of one device; None = unknown.
        fits: whether it fits; None = uncertain or unknown.
        price: of one device; None = unknown.
        tdp_w: of one device; None = unknown.
        is_hypothetical: whether the device was scaled, or is described by the user.
        reasons: why the prediction has low confidence, or why there is no latency.
        parts: seconds by kind of kernel, if the method adds them up.
        operators: seconds by kind of layer and operator, for a decoder.
    """

    network: str
    batch: int
    device: str
    degree: int
    item: Literal["inference", "sample", "token"]
    items: int
    latency_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    method: str = ""
    memory_bytes: float | None = None
    memory_limit_bytes: float | None = None
    fits: bool | None = None
    price: Price | None = None
    tdp_w: float | None = None
    is_hypothetical: bool = False
    reasons: tuple[str, ...] = ()
    parts: Mapping[str, float] = field(default_factory=dict)
    operators: tuple[LayerOperator, ...] = ()

    def __str__(self) -> str:
        each = f"{self.degree} x {self.device}" if self.degree > 1 else self.device
        latency = interval_text(self.latency_s, self.low_s, self.high_s)
        return f"{self.network}, batch {self.batch} on {each}: {latency}"

    @property
    def throughput_per_s(self) -> float | None:
        """Items per second, with one run at a time."""
        return None if self.latency_s is None else self.items / self.latency_s

    @property
    def cost_per_million(self) -> float | None:
        """US dollars per million items on rented devices without idle time."""
        if self.latency_s is None or self.price is None:
            return None
        run = self.degree * self.price.per_hour * self.latency_s / _HOUR_S
        return _MILLION * run / self.items

    @property
    def energy_bound_j(self) -> float | None:
        """Upper bound of the joules per item at the devices' TDP, without the host."""
        if self.latency_s is None or self.tdp_w is None:
            return None
        return self.degree * self.tdp_w * self.latency_s / self.items

    def value(self, objective: Objective) -> float | None:
        """Returns a value to minimise; None = unknown."""
        rate = self.throughput_per_s
        return {
            "latency": self.latency_s,
            "throughput": None if rate is None else -rate,
            "cost": self.cost_per_million,
            "energy": self.energy_bound_j,
        }[objective]

    def ends(self, objective: Objective) -> tuple[float, float] | None:
        """Returns the ends of `value`; equal without an interval, None = unknown.

        All objectives are functions of the latency.
        """
        value = self.value(objective)
        if value is None:
            return None
        if not self.latency_s or self.low_s is None or self.high_s is None:
            return value, value
        low, high = self.low_s / self.latency_s, self.high_s / self.latency_s
        if objective == "throughput":  # below 0, and the inverse of the latency
            low, high = 1.0 / low, 1.0 / high
        return value * low, value * high

    def to_json(self) -> dict[str, Any]:
        """Returns a flat JSON object."""
        values = asdict(self)
        price = values.pop("price")
        return values | {
            "reasons": list(self.reasons),
            "operators": [asdict(one) for one in self.operators],
            "throughput_per_s": self.throughput_per_s,
            "cost_usd_per_million": self.cost_per_million,
            "energy_bound_j": self.energy_bound_j,
            "usd_per_hour": None if price is None else price["per_hour"],
            "price": None if self.price is None else self.price.text,
        }


def no_fit(cell: CompareCell) -> str:
    """Returns the message that a network does not fit a device."""
    needed, limit = (cell.memory_bytes or 0.0) / _GIB, (cell.memory_limit_bytes or 0.0) / _GIB
    each = f" on each of {cell.degree}" if cell.degree > 1 else ""
    size = f"{needed:.3g}" if needed < 1000 else f"{needed:,.0f}"
    return f"does not fit: it needs {size} GiB{each}, {cell.device} has {limit:.3g} GiB"


def ranked(cells: Sequence[CompareCell], objective: Objective) -> list[CompareCell]:
    """Returns the cells of one network, best first, unknown values last."""

    def order(cell: CompareCell) -> tuple[bool, float, str]:
        value = cell.value(objective)
        return value is None, value or 0.0, cell.device

    return sorted(cells, key=order)


def ranks(cells: Sequence[CompareCell], objective: Objective) -> list[int | None]:
    """Returns the rank of each cell of one network: 1 + the number of devices that are certainly
    better, with an interval entirely below. Cells of equal rank are tied: their intervals overlap.
    None = unknown.
    """
    ends = [cell.ends(objective) for cell in cells]
    highs = [one[1] for one in ends if one is not None]
    return [None if one is None else 1 + sum(high < one[0] for high in highs) for one in ends]


def front(cells: Sequence[CompareCell], first: Objective, second: Objective) -> list[CompareCell]:
    """Returns the Pareto front of two objectives, sorted by the first.

    Cells with an unknown value are left out, see `is_on_front`.
    """
    known = [
        (a, b, cell)
        for cell in cells
        if (a := cell.value(first)) is not None and (b := cell.value(second)) is not None
    ]
    found: list[CompareCell] = []
    best = float("inf")
    for _, b, cell in sorted(known, key=lambda one: one[:2]):
        if b < best:
            found.append(cell)
            best = b
    return found


def is_on_front(
    cells: Sequence[CompareCell], first: Objective, second: Objective
) -> list[bool | None]:
    """Returns for each cell whether it is on the Pareto front.

    A cell with unknown `first` is on the front if its `second` is the unique minimum, as no cell
    can dominate it; otherwise the result is None. A cell with unknown `second` is not on it.
    """
    best = {id(cell) for cell in front(cells, first, second)}
    seconds = [value for cell in cells if (value := cell.value(second)) is not None]

    def place(cell: CompareCell) -> bool | None:
        value = cell.value(second)
        if cell.value(first) is not None or value is None:
            return id(cell) in best
        return True if value == min(seconds) and seconds.count(value) == 1 else None

    return [place(cell) for cell in cells]
