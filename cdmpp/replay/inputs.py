"""What is to be replayed: which kind of file, read into graphs and iterations."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import numpy as np

from cdmpp.config import read_yaml
from cdmpp.errors import DataError, UsageError
from cdmpp.files.json_stream import top_level_keys
from cdmpp.replay.graph import OperatorGraph
from cdmpp.replay.graph_file import FORMAT
from cdmpp.replay.tenset_network import is_tenset_network
from cdmpp.replay.traces.dlrm import FORMAT as DLRM
from cdmpp.replay.traces.execution_trace import read_execution_trace
from cdmpp.replay.traces.host_operators import HostOperator, host_iterations
from cdmpp.replay.traces.overheads import HostOverheads, extract_overheads, merged
from cdmpp.replay.traces.trace_events import read_trace_events
from cdmpp.replay.traces.trace_graph import (
    graph_of_iteration,
    joined_processes,
    mean_of_iterations,
)

Kind = Literal["network", "tenset", "graph", "chrome", "execution", "dlrm"]
_WHAT = (
    "a network (.onnx, .pt2), Tenset's ((NETWORK),KIND).task.pkl, a graph (.json, .yaml), a trace "
    "of torch.profiler or ExecutionTraceObserver (.json, .json.gz), or a training preset (.yaml)"
)


@dataclass
class TraceInput:
    """Traces of a program.

    Attributes:
        ranks: iterations of each process, each a list of top-level operators.
        names: of the processes.
    """

    ranks: list[list[list[HostOperator]]] = field(default_factory=list)
    names: list[str] = field(default_factory=list)


def kind_of(path: Path) -> Kind:
    """Returns what a file is, from its name and its first keys.

    Raises:
        DataError: there is no such file, or it is none of these.
    """
    if not path.is_file():
        what = "is a folder" if path.is_dir() else "there is no such file"
        raise DataError(f"{path}: {what}; expected {_WHAT}")
    suffixes = [part.lower() for part in path.suffixes]
    if suffixes[-1:] in ([".onnx"], [".pt2"]):
        return "network"
    if is_tenset_network(path):
        return "tenset"
    if suffixes[-1:] in ([".yaml"], [".yml"]):
        return _yaml_kind(path)
    if suffixes[-1:] == [".json"] or suffixes[-2:] == [".json", ".gz"]:
        keys = top_level_keys(path)
        if "traceEvents" in keys or keys == ["[]"]:
            return "chrome"
        if "nodes" in keys or {"schema", "pid"} <= set(keys):
            return "execution"
        if "operators" in keys or "format" in keys:
            return "graph"
        raise DataError(f"{path}: its keys are {', '.join(keys) or 'none'}; expected {_WHAT}")
    raise DataError(f"{path}: cannot tell what this is; expected {_WHAT}")


def one_kind(paths: list[Path]) -> Kind:
    """Returns the kind of all files.

    Raises:
        DataError: a file is unreadable or of no known kind.
        UsageError: several files that do not belong together.
    """
    kinds = [kind_of(path) for path in paths]
    found = set(kinds)
    if len(paths) == 1 or found == {"chrome"}:
        return kinds[0]
    if found == {"chrome", "execution"} and kinds.count("execution") == 1:
        return "execution"
    raise UsageError(
        f"{len(paths)} files ({', '.join(sorted(found))}); expected one file, several traces of "
        "torch.profiler (one a process), or one execution trace with profiler traces of its run"
    )


def read_traces(paths: list[Path], iterations: str | None = None) -> TraceInput:
    """Returns the iterations of every profiler trace, a process each.

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
    return found


def iteration_range(text: str | None) -> tuple[int | None, int | None]:
    """Returns the ends of `FIRST:LAST`.

    Raises:
        UsageError: another form.
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


def execution_graph(paths: list[Path]) -> OperatorGraph:
    """Returns the graph of an execution trace, with the times of profiler traces beside it."""

    (observed,) = (path for path in paths if kind_of(path) == "execution")
    times: dict[int, list[float]] = {}
    for path in paths:
        if path == observed:
            continue
        columns = read_trace_events(path).operators
        for link, duration in zip(columns.link, columns.duration_us, strict=True):
            if link >= 0:
                times.setdefault(link, []).append(1e-6 * duration)
    return read_execution_trace(
        observed, {link: float(np.mean(found)) for link, found in times.items()}
    )


def _yaml_kind(path: Path) -> Kind:

    try:
        name = read_yaml(path).get("format")
    except UsageError as error:
        raise DataError(str(error)) from None
    if name == DLRM:
        return "dlrm"
    if name == FORMAT:
        return "graph"
    raise DataError(f"{path}: format {name!r}; expected format: {FORMAT}, or format: {DLRM}")
