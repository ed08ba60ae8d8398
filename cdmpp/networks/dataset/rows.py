"""Rows of a data set of networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cdmpp.errors import DataError
from cdmpp.networks.graph.execution import MODES, Mode
from cdmpp.networks.graph.graph import NetworkGraph

#: Version of the layout of a stored data set; a reader accepts only this one.
SCHEMA_VERSION = 2

Outcome = Literal["ok", "out-of-memory", "timeout", "crashed"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

_NEXT = "write it with `cdmpp networks measure` or `cdmpp networks convert`"


@dataclass(frozen=True)
class GraphRow:
    """A network at one batch size.

    Attributes:
        graph: the operator graph.
        architecture: id of the network without its batch size, by which data are split.
        source: origin of the network, e.g. `generated` or `published`.
        spec: specification of the network as text; None = unknown.
        resolution: height and width of the input in pixels; None = unknown or no image.
    """

    graph: NetworkGraph
    architecture: str
    source: str
    spec: str | None = None
    resolution: int | None = None


@dataclass(frozen=True)
class LabelRow:
    """Measurement of a network on a device. An unknown value is None, never 0.

    Attributes:
        graph_id: id of the network (`NetworkGraph.graph_id`).
        device: device label.
        mode: `infer`, or `train` (forward, backward and update).
        time_s: median seconds of one iteration (one batch). A campaign with enough samples measured
            twice corrects it to the machine's usual speed (see `machine_speed`).
        low_s: lower end of the median's 95 % interval.
        high_s: upper end of the median's 95 % interval.
        times_s: seconds per iteration of every repeat; empty = not stored.
        memory_bytes: peak memory of a fresh process above its baseline.
        allocated_bytes: peak allocations of the framework.
        process_bytes: like `memory_bytes`, but with the default C library, which keeps freed
            memory; it depends on the history of the heap.
        utilisation: 0 to 1: CPU time / (wall time x threads), or a GPU's mean utilisation.
        outcome: `ok`, or why there is no time.
        note: other information as text.
        threads: software threads; None = unknown or a GPU.
        torch_version: version of torch.
        measured_at: ISO 8601 time, UTC.
        operators_s: [operators] seconds of each operator inside the network; empty = not measured.

    Raises:
        DataError: an unknown mode or outcome, or `ok` without a positive time.
    """

    graph_id: str
    device: str
    mode: Mode
    time_s: float | None = None
    low_s: float | None = None
    high_s: float | None = None
    times_s: tuple[float, ...] = ()
    memory_bytes: float | None = None
    allocated_bytes: float | None = None
    utilisation: float | None = None
    outcome: Outcome = "ok"
    note: str = ""
    threads: int | None = None
    torch_version: str | None = None
    measured_at: str | None = None
    process_bytes: float | None = None
    operators_s: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        where = f"label of {self.graph_id} on {self.device}"
        if self.mode not in MODES:
            raise DataError(f"{where}: mode {self.mode!r}, expected one of {', '.join(MODES)}")
        if self.outcome not in OUTCOMES:
            raise DataError(
                f"{where}: outcome {self.outcome!r}, expected one of {', '.join(OUTCOMES)}"
            )
        if self.outcome == "ok" and not (self.time_s is not None and self.time_s > 0):
            raise DataError(f"{where}: {self.mode} is ok with time {self.time_s}, expected above 0")
