"""Graph files in JSON or YAML (schema: `docs/how-to/replay.md`)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_json
from cdmpp.files.json_text import parse_json
from cdmpp.files.open_text import read_text
from cdmpp.files.yaml_text import parse_yaml
from cdmpp.replay.graph import COLLECTIVES, COMMUNICATION, COPY, Operator, OperatorGraph
from cdmpp.replay.transfers import Links, links_of, with_copies
from cdmpp.text import nearest

FORMAT = "cdmpp-operator-graph"
VERSION = 1
_MOST_OPERATORS = 1_000_000
_SHOW = "the schema is in docs/how-to/replay.md"
_TOP = ("format", "version", "name", "devices", "links", "has_edges", "copies", "operators")
_NUMBERS = ("time_s", "low_s", "high_s", "flop", "bytes", "output_bytes")
_TEXTS = ("id", "name", "kind", "device", "queue", "task", "collective")
_LISTS = ("after", "shapes", "devices")
_OTHERS = ("priority", "is_blocking", "calls")
_KNOWN = frozenset((*_NUMBERS, *_TEXTS, *_LISTS, *_OTHERS))


@dataclass(frozen=True)
class GraphFile:
    """Content of a graph file.

    Attributes:
        graph: the operators, with one operator per call.
        links: the connections between devices.
    """

    graph: OperatorGraph
    links: Links


def read_graph(path: Path) -> GraphFile:
    """Reads a graph file.

    Raises:
        DataError: the file is unreadable, neither JSON nor YAML, or has another format or an
            invalid value.
    """
    path = Path(path)
    is_json = ".json" in path.suffixes
    text = read_text(path)
    try:
        value = parse_json(text) if is_json else parse_yaml(text)
    except ValueError as error:
        detail = " ".join(str(error).split())[:160]
        raise DataError(
            f"{path}: not {'JSON' if is_json else 'YAML'} ({detail}); {_SHOW}"
        ) from None
    return graph_of(value, str(path))


def graph_of(value: Any, where: str) -> GraphFile:
    """Returns the graph in parsed JSON or YAML.

    Raises:
        DataError: another format, or an invalid value.
    """
    if not isinstance(value, dict) or value.get("format") != FORMAT:
        got = value.get("format") if isinstance(value, dict) else type(value).__name__
        raise DataError(f"{where}: format {got!r}, expected format: {FORMAT}; {_SHOW}")
    if value.get("version") != VERSION:
        raise DataError(
            f"{where}: graph of version {value.get('version')!r}, expected {VERSION}; {_SHOW}"
        )
    _only_known(value, _TOP, where)
    rows = value.get("operators")
    if not isinstance(rows, list) or not rows:
        raise DataError(f"{where}: no operators; expected a list with at least one; {_SHOW}")
    for name in ("has_edges", "copies"):
        if not isinstance(value.get(name, False), bool):
            raise DataError(f"{where}: {name} is {value[name]!r}, expected true or false; {_SHOW}")
    devices = value.get("devices", {})
    if not _is_text_mapping(devices):
        raise DataError(f"{where}: devices: expected label -> name of a device; {_SHOW}")
    try:
        links = links_of(value.get("links") or {})
    except UsageError as error:
        raise DataError(f"{where}: links: {error}") from None
    calls: dict[str, int] = {}
    output_bytes: dict[str, float] = {}
    operators = []
    for number, row in enumerate(rows):
        one, count, size = _operator(row, f"{where}: operator {number}")
        operators.append(one)
        calls[one.id] = count
        if size is not None:
            output_bytes[one.id] = size
    if sum(calls.values()) > _MOST_OPERATORS:
        raise DataError(f"{where}: more than {_MOST_OPERATORS:,} calls of operators; {_SHOW}")
    graph = OperatorGraph(
        name=str(value.get("name") or where), operators=tuple(operators), devices=dict(devices),
        source=where, has_edges=value.get("has_edges", True),
    )  # fmt: skip
    if value.get("copies", False):
        graph = with_copies(graph, output_bytes)
    return GraphFile(expanded(graph, calls), links)


def expanded(graph: OperatorGraph, calls: Mapping[str, int]) -> OperatorGraph:
    """Returns the graph with one operator per call.

    Each call waits for the predecessors of the operator; its successors wait for all calls.

    Args:
        calls: operator id -> number of calls; 1 for missing ids.
    """
    names = {
        one.id: tuple(f"{one.id}#{number}" for number in range(1, calls[one.id] + 1))
        for one in graph.operators
        if calls.get(one.id, 1) > 1
    }
    if not names:
        return graph
    operators = []
    for one in graph.operators:
        after = tuple(part for name in one.after for part in names.get(name, (name,)))
        waits = replace(one, after=after)
        operators += [
            replace(waits, id=name, name=one.label) for name in names.get(one.id, ())
        ] or [waits]
    return replace(graph, operators=tuple(operators))


def write_graph(path: Path, graph: OperatorGraph, links: Links | None = None) -> None:
    """Writes a graph file, from which `read_graph` restores an equal graph.

    Raises:
        DataError: the file cannot be written.
    """
    write_json(path, graph_values(graph, links))


def graph_values(graph: OperatorGraph, links: Links | None = None) -> dict[str, Any]:
    """Returns a graph as JSON values, without defaults."""
    links = links or Links()
    return {
        "format": FORMAT, "version": VERSION, "name": graph.name, "devices": dict(graph.devices),
        "has_edges": graph.has_edges,
        "links": {
            name: _without_none(vars(link))
            for name, link in (("copy", links.copy), ("collective", links.collective))
            if link is not None
        },
        "operators": [_row(one) for one in graph.operators],
    }  # fmt: skip


def _row(one: Operator) -> dict[str, Any]:
    blank = Operator(id="")
    values: dict[str, Any] = {"id": one.id, "queue": one.queue}
    for entry in fields(one):
        value = getattr(one, entry.name)
        if entry.name not in values and value != getattr(blank, entry.name):
            values[entry.name] = list(value) if isinstance(value, tuple) else value
    return values


def _operator(row: Any, where: str) -> tuple[Operator, int, float | None]:
    """Returns (operator, number of calls, bytes of its result)."""
    if not isinstance(row, dict) or not isinstance(row.get("id"), str | int):
        raise DataError(f"{where}: expected a mapping with an id; {_SHOW}")
    where = f"{where} ({row['id']})"
    _only_known(row, _KNOWN, where)
    values: dict[str, Any] = {}
    for name in _TEXTS:
        if name in row and row[name] is not None:
            if not isinstance(row[name], str | int):
                raise DataError(f"{where}: {name} is {row[name]!r}, expected a text; {_SHOW}")
            values[name] = str(row[name])
    for name in _NUMBERS:
        number = row.get(name)
        if number is not None:
            values[name] = _number(number, name, where)
    for name in _LISTS:
        if name in row:
            if not isinstance(row[name], list):
                raise DataError(f"{where}: {name} is {row[name]!r}, expected a list; {_SHOW}")
            values[name] = tuple(str(part) for part in row[name])
    for name in ("priority", "calls"):
        number = row.get(name, 1)
        least = 1 if name == "calls" else -(2**31)
        if isinstance(number, bool) or not isinstance(number, int) or number < least:
            raise DataError(f"{where}: {name} is {number!r}, expected a whole number; {_SHOW}")
    if not isinstance(row.get("is_blocking", False), bool):
        raise DataError(f"{where}: is_blocking is {row['is_blocking']!r}, expected true or false")
    collective = values.get("collective")
    if collective is not None and collective not in COLLECTIVES:
        raise DataError(
            f"{where}: collective {collective!r}, expected one of {', '.join(COLLECTIVES)}; {_SHOW}"
        )
    if collective is not None and len(set(values.get("devices", ()))) < 2:
        raise DataError(
            f"{where}: a collective of the devices {list(values.get('devices', ()))}; expected at "
            f"least two different ones; {_SHOW}"
        )
    output_bytes = values.pop("output_bytes", None)
    default_queue = COPY if values.get("kind") == "copy" else COMMUNICATION if collective else None
    if default_queue and "queue" not in values:
        values["queue"] = default_queue
    if collective:
        values.setdefault("kind", collective)
        values.setdefault("device", values["devices"][0])
    operator = Operator(
        **values, priority=row.get("priority", 0), is_blocking=row.get("is_blocking", False)
    )
    low, time, high = operator.low_s, operator.time_s, operator.high_s
    if time is not None and not (low is None or low <= time) & (high is None or high >= time):
        raise DataError(
            f"{where}: low_s {low}, time_s {time}, high_s {high}; expected increasing values; "
            f"{_SHOW}"
        )
    return operator, int(row.get("calls", 1)), output_bytes


def _number(value: Any, name: str, where: str) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not math.isfinite(value) or value < 0:
        raise DataError(f"{where}: {name} is {value!r}, expected a number from 0 up; {_SHOW}")
    return float(value)


def _only_known(row: Mapping[str, Any], known: Any, where: str) -> None:
    for name in row:
        if name not in known:
            raise DataError(
                f"{where}: unknown name {name!r}{nearest(str(name), known)}; expected "
                f"{', '.join(sorted(known))}; {_SHOW}"
            )


def _is_text_mapping(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(key, str) and isinstance(item, str) for key, item in value.items()
    )


def _without_none(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
