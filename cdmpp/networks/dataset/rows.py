"""The rows of a dataset of networks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from cdmpp.errors import DataError
from cdmpp.networks.graph.execution import MODES, Mode
from cdmpp.networks.graph.graph import NetworkGraph

#: Version of the layout of a stored data set; a reader refuses any other.
SCHEMA_VERSION = 2

Outcome = Literal["ok", "out-of-memory", "timeout", "crashed"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)

_NEXT = "write it with `cdmpp networks measure` or `cdmpp networks convert`"


@dataclass(frozen=True)
class GraphRow:
    """A network at one batch size.

    Attributes:
        graph: the operators.
        architecture: id of the network without its batch; splits are by it.
        source: where the network is from, e.g. `generated` or `published`.
        spec: what it was made of, as text; None = unknown.
        resolution: height and width of the input in pixels; None = unknown or no image.
    """

    graph: NetworkGraph
    architecture: str
    source: str
    spec: str | None = None
    resolution: int | None = None


@dataclass(frozen=True)
class LabelRow:
    """What one network took on one device. None = unknown, never 0.

    Attributes:
        graph_id: the network (`NetworkGraph.graph_id`).
        device: device label.
        mode: `infer`, or `train` (forward, backward and update).
        time_s: median seconds of one iteration, that is one batch; of a campaign that measured
            everything twice at the machine's usual speed (see `machine_speed`).
        low_s: lower end of the median's 95 % interval.
        high_s: upper end.
        times_s: seconds of every iteration that was timed; empty = not kept.
        memory_bytes: peak memory of a fresh process above its baseline.
        allocated_bytes: the framework's own peak of allocations.
        process_bytes: the same peak as `memory_bytes` of a process whose C library keeps freed
            memory, as it does by default; it depends on the history of the heap.
        utilisation: 0 to 1: CPU time / (wall time x threads); of a GPU the mean over its cores.
        outcome: `ok`, or why there is no time.
        note: anything else, as text.
        threads: software threads; None = unknown or a GPU.
        torch_version: version that ran it.
        measured_at: ISO 8601 time, UTC.
        operators_s: [operators] seconds of each operator of the graph where it stands; empty =
            not measured.

    Raises:
        DataError: unknown mode or outcome, or `ok` without a time above 0.
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
