"""Inputs of a replay: detects the kind of file and reads it into graphs and iterations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from cdmpp.errors import DataError, UsageError
from cdmpp.replay.file_kind import FileKind, file_kind
from cdmpp.replay.graph import OperatorGraph
from cdmpp.replay.traces.execution_trace import read_execution_trace
from cdmpp.replay.traces.host_operators import HostOperator, host_iterations, kernel_times_us
from cdmpp.replay.traces.overheads import HostOverheads, extract_overheads, merged
from cdmpp.replay.traces.trace_events import read_trace_events
from cdmpp.replay.traces.trace_graph import (
    graph_of_iteration,
    joined_processes,
    mean_of_iterations,
)

#: Kinds of files that can be replayed.
REPLAYED: tuple[FileKind, ...] = ("network", "tenset", "graph", "chrome", "execution", "dlrm")


@dataclass
class TraceInput:
    """Traces of a program.

    Attributes:
        ranks: iterations of each process, each a list of top-level operators.
        names: names of the processes.
        notes: what was left out of the files, one sentence each.
    """

    ranks: list[list[list[HostOperator]]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


def one_kind(paths: list[Path]) -> FileKind:
    """Returns the common kind of the files.

    Raises:
        DataError: a file is unreadable or of unknown kind.
        UsageError: the files do not belong together, or a file is for another command.
    """
    kinds = [file_kind(path, REPLAYED) for path in paths]
    found = set(kinds)
    if len(paths) == 1 or found == {"chrome"}:
        return kinds[0]
    if found == {"chrome", "execution"} and kinds.count("execution") == 1:
        return "execution"
    raise UsageError(
        f"{len(paths)} files ({', '.join(sorted(found))}); expected one file, several traces of "
        "torch.profiler (one per process), or one execution trace with profiler traces of its "
        "run"
    )


def read_traces(paths: list[Path], iterations: str | None = None) -> TraceInput:
    """Returns the iterations of the profiler traces, one trace per process.

    Args:
        iterations: FIRST:LAST, see `iteration_range`.
    """
    found = TraceInput()
    first, last = iteration_range(iterations)
    for rank, path in enumerate(paths):
        trace = read_trace_events(path)
        every = host_iterations(trace)
        chosen = every[first:last]
        if not chosen:
            raise DataError(
                f"{path}: {len(every)} iterations, none in {iterations}; expected "
                "--iterations FIRST:LAST, counted from 0, LAST not included"
            )
        found.ranks.append(chosen)
        found.names.append(f"rank{rank}")
        found.notes += [f"{path.name}: {note}" for note in trace.notes]
    return found


def iteration_range(text: str | None) -> tuple[int | None, int | None]:
    """Returns both ends of `FIRST:LAST`.

    Raises:
        UsageError: invalid format.
    """
    if text is None:
        return None, None
    first, separator, last = text.partition(":")
    try:
        if not separator:
            raise ValueError(text)
        return (int(first) if first else None), (int(last) if last else None)
    except ValueError:
        raise UsageError(
            f"--iterations {text!r}: expected FIRST:LAST, such as 1: to leave out the first one"
        ) from None


def trace_graph(traces: TraceInput, paths: list[Path]) -> OperatorGraph:
    """Returns all iterations and processes as one graph."""
    graphs = [
        mean_of_iterations(
            [graph_of_iteration(one, name=path.name, source=str(path)) for one in iterations]
        )
        for iterations, path in zip(traces.ranks, paths, strict=True)
    ]
    return joined_processes(graphs, traces.names)


def trace_overheads(traces: TraceInput, paths: list[Path]) -> HostOverheads:
    """Returns the host overheads of all processes."""
    return merged(
        [
            extract_overheads(iterations, source=path.name)
            for iterations, path in zip(traces.ranks, paths, strict=True)
        ]
    )


def execution_graph(
    paths: list[Path], *, on_note: Callable[[str], None] = lambda _: None
) -> OperatorGraph:
    """Returns the graph of an execution trace, with the times of the profiler traces.

    Args:
        on_note: called with notes about what was left out of the profiler traces.
    """
    return read_execution_trace(*execution_files(paths, on_note=on_note))


def execution_files(
    paths: list[Path], *, on_note: Callable[[str], None]
) -> tuple[Path, dict[int, float], dict[int, float]]:
    """Returns the execution trace among the files, and two dictionaries from the profiler traces:
    record function number -> mean seconds on the host, and -> mean seconds of its kernels (empty if
    no profile has kernels).
    """
    (observed,) = (path for path in paths if file_kind(path) == "execution")
    on_host: dict[int, list[float]] = {}
    on_device: dict[int, list[float]] = {}
    for path in paths:
        if path == observed:
            continue
        trace = read_trace_events(path)
        for note in trace.notes:
            on_note(f"{path.name}: {note}")
        columns = trace.operators
        for times, values in (
            (on_host, columns.duration_us),
            (on_device, kernel_times_us(trace) if len(trace.kernels) else ()),
        ):
            for link, value_us in zip(columns.link, values, strict=False):
                if link >= 0:
                    times.setdefault(link, []).append(1e-6 * value_us)
    host_s, device_s = (
        {link: float(np.mean(found)) for link, found in times.items()}
        for times in (on_host, on_device)
    )
    return observed, host_s, device_s
