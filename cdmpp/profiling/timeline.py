"""Timeline page: one zoomable HTML file with a lane for every stream and thread."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from cdmpp.arrays import FloatArray, IntArray
from cdmpp.errors import DataError
from cdmpp.files.atomic import write_text
from cdmpp.files.places import package_folder
from cdmpp.profiling.schema import DEVICE_KINDS, Profile
from cdmpp.text import counted

#: Maximum events on a page; larger pages open slowly.
MOST_EVENTS: Final = 150_000
_BINS = 600
#: Maximum nesting depth; deeper events are drawn on the last line.
_MOST_DEPTH = 40
_NS_PER_S = 1e9


def write_timeline(profile: Profile, path: Path) -> dict[str, int]:
    """Writes the page; returns the numbers of shown and omitted events.

    Raises:
        DataError: a profile without events, or a file that cannot be written.
    """
    import jinja2

    data, left_out = timeline_data(profile)
    notes = [f"{counted(len(data['start']), 'event')}, {profile.format}"]
    if left_out:
        notes[0] += f"; without the {left_out} shortest"
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(package_folder("cdmpp.profiling")), autoescape=True,
        undefined=jinja2.StrictUndefined,
    )  # fmt: skip
    # A `</script>` in a name must not end the page's data.
    text = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    names = ", ".join(Path(name).name for name in profile.source.split(", "))
    page = environment.get_template("timeline.html").render(
        title=f"Timeline of {names}", notes=[*notes, *profile.notes], data=text
    )
    write_text(path, page)
    return {"events": len(data["start"]), "left_out": left_out}


def timeline_data(profile: Profile, *, most: int = MOST_EVENTS) -> tuple[dict[str, Any], int]:
    """Returns (data of the page with times in ns, number of omitted events, the shortest).

    Raises:
        DataError: a profile without events.
    """
    events = profile.events
    if events is None or not len(events):
        raise DataError(
            f"{profile.source}: has only sums, no events for a timeline; expected a trace: "
            "torch.profiler, nvprof --print-gpu-trace or -o, nsys export --type sqlite"
        )
    kept = np.arange(len(events))
    if len(kept) > most:
        kept = np.sort(np.argsort(-events.duration_s, kind="stable")[:most])
    start = np.round(events.start_s[kept] * _NS_PER_S).astype(np.int64)
    duration = np.round(events.duration_s[kept] * _NS_PER_S).astype(np.int64)
    lane, row = events.lane[kept], events.row[kept]
    order = np.lexsort((-duration, start, lane))
    start, duration, lane, row = (values[order] for values in (start, duration, lane, row))
    used, lane = np.unique(lane, return_inverse=True)
    depth = _depths(start, duration, lane)
    span = int((start + duration).max())
    busy, label = _busy(profile)
    rows_used, row = np.unique(row, return_inverse=True)
    lanes = [
        {"name": events.lanes[int(number)], "depth": int(depth[lane == place].max()) + 1}
        for place, number in enumerate(used)
    ]
    data = {
        "span": span, "lanes": lanes, "start": start.tolist(), "duration": duration.tolist(),
        "lane": lane.tolist(), "depth": depth.tolist(), "row": row.tolist(),
        "busy": [round(float(share), 4) for share in busy], "busy_label": label,
        "rows": [
            {"name": found.name, "short": found.short_name, "kind": found.kind,
             "calls": found.calls}
            for found in (profile.rows[int(number)] for number in rows_used)
        ],
    }  # fmt: skip
    return data, len(events) - len(kept)


def _depths(start: IntArray, duration: IntArray, lane: IntArray) -> IntArray:
    """Returns int64 [E], the line of each event in its lane, so that no event covers another.

    Args:
        start, duration, lane: int64 [E], sorted by lane, start and descending duration.
    """
    found, ends, before = [], list[int](), -1
    for begin, length, number in zip(start.tolist(), duration.tolist(), lane.tolist(), strict=True):
        if number != before:
            ends, before = [], number
        while ends and ends[-1] <= begin:
            ends.pop()
        place = min(len(ends), _MOST_DEPTH - 1)
        ends.append(begin + length)
        found.append(place)
    return np.array(found, np.int64)


def _busy(profile: Profile) -> tuple[FloatArray, str]:
    """Returns (float64 [bins], busy share of each time bin; label)."""
    events = profile.events
    assert events is not None
    is_device = np.array([row.kind in DEVICE_KINDS for row in profile.rows], bool)[events.row]
    label = "device busy" if is_device.any() else "operators run"
    # Ranges include idle time, so they are not counted.
    works = np.array([row.kind in ("cpu_op", "api") for row in profile.rows], bool)[events.row]
    chosen = is_device if is_device.any() else works
    if not chosen.any():
        return np.zeros(0), label
    end = events.start_s + events.duration_s
    span = float(end.max())
    if span <= 0.0:
        return np.zeros(0), label
    # Busy time up to each bin edge, from the union of the events' intervals.
    order = np.argsort(events.start_s[chosen], kind="stable")
    start, stop = events.start_s[chosen][order], np.maximum.accumulate(end[chosen][order])
    begin = np.maximum(start, np.concatenate([[0.0], stop[:-1]]))
    length = np.maximum(stop - begin, 0.0)
    edges = np.linspace(0.0, span, _BINS + 1)
    times = np.stack([begin, begin + length], axis=1).ravel()
    done = np.concatenate([[0.0], np.cumsum(length)])
    values = np.stack([done[:-1], done[1:]], axis=1).ravel()
    share = np.diff(np.interp(edges, times, values)) / (span / _BINS)
    return np.asarray(np.clip(share, 0.0, 1.0), np.float64), label
