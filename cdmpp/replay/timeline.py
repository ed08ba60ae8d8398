"""A replay as a chrome trace, for chrome://tracing and Perfetto."""

from __future__ import annotations

import json
from pathlib import Path

from cdmpp.files.atomic import write_atomic
from cdmpp.replay.engine import Replay

_US_PER_S = 1e6


def write_chrome_trace(path: Path, run: Replay) -> None:
    """Writes one event per operator and queue; devices are processes, queues are threads.

    Raises:
        DataError: the file cannot be written.
    """
    write_atomic(path, lambda temporary: _write(temporary, run))


def _write(path: Path, run: Replay) -> None:
    places = sorted(run.busy_s)
    devices = {name: number for number, name in enumerate(dict.fromkeys(p[0] for p in places))}
    queues = {place: number for number, place in enumerate(places)}
    events: list[dict[str, object]] = [
        {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}
        for name, number in devices.items()
    ]
    events += [
        {"ph": "M", "name": "thread_name", "pid": devices[place[0]], "tid": number,
         "args": {"name": place[1]}}
        for place, number in queues.items()
    ]  # fmt: skip
    on_chain = {step.index for step in run.chain}
    with path.open("w", encoding="utf-8") as stream:
        stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
        for event in events:
            stream.write(json.dumps(event) + ",\n")
        separator = ""
        for index, one in enumerate(run.graph.operators):
            for place in one.places:
                event = {
                    "ph": "X", "cat": one.kind or "operator", "name": one.label,
                    "pid": devices[place[0]], "tid": queues[place],
                    "ts": _US_PER_S * run.start_s[index], "dur": _US_PER_S * run.times_s[index],
                    "args": {"id": one.id, "critical": index in on_chain},
                }  # fmt: skip
                stream.write(separator + json.dumps(event))
                separator = ",\n"
        stream.write("\n]}\n")
