"""Merges profiles: rows with equal names, and timelines on one clock."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from cdmpp.profiling.schema import Events, Profile, ProfileRow


def merge_profiles(profiles: Sequence[Profile]) -> Profile:
    """Merges the profiles of several files (processes, iterations, or counters and times of one
    program).

    Timelines are aligned if every file has a start time; otherwise each starts at 0. Counters
    without times (nvprof's metrics) are added to the rows of their kernel.
    """
    if len(profiles) == 1:
        return profiles[0]
    rows, place_of = _merged_rows(profiles)
    events, notes = _merged_events(profiles, place_of)
    devices = {profile.device_name for profile in profiles if profile.device_name}
    for profile in profiles:
        notes += [f"{Path(profile.source).name}: {note}" for note in profile.notes]
    if len(devices) > 1:
        notes.append(f"the files are of different devices: {', '.join(sorted(devices))}")
    epochs = [p.epoch_s for p in profiles if p.events is not None and p.epoch_s is not None]
    return Profile(
        source=", ".join(profile.source for profile in profiles),
        format=" + ".join(dict.fromkeys(profile.format for profile in profiles)),
        rows=rows, events=events, device_name=devices.pop() if len(devices) == 1 else None,
        epoch_s=min(epochs) if epochs else None, notes=tuple(notes),
    )  # fmt: skip


def join_rows(rows: Sequence[ProfileRow]) -> ProfileRow:
    """Merges rows of one name; launches and calls that differ become None.

    Bytes and operations are kept only if every row has them; metrics are means over the calls.
    """
    if len(rows) == 1:
        return rows[0]
    first = rows[0]
    lows = [row.min_s for row in rows if row.min_s is not None]
    highs = [row.max_s for row in rows if row.max_s is not None]
    samples = [row.samples_s for row in rows if row.samples_s is not None]
    moved = [row.moved_bytes for row in rows if row.moved_bytes is not None]
    flop = [row.flop for row in rows if row.flop is not None]
    return replace(
        first,
        calls=sum(row.calls for row in rows),
        total_s=sum(row.total_s for row in rows),
        self_s=sum(row.own_s for row in rows),
        min_s=min(lows) if lows else None,
        max_s=max(highs) if highs else None,
        percent=None,
        samples_s=np.concatenate(samples) if len(samples) == len(rows) else None,
        moved_bytes=sum(moved) if len(moved) == len(rows) else None,
        flop=sum(flop) if len(flop) == len(rows) else None,
        launch=first.launch if all(row.launch == first.launch for row in rows) else None,
        call=first.call if all(row.call == first.call for row in rows) else None,
        metrics=_mean_metrics(rows),
    )


def _mean_metrics(rows: Sequence[ProfileRow]) -> dict[str, float | str]:
    """Returns the means of metrics over the calls that have them; of texts, the first one."""
    found: dict[str, float | str] = {}
    for name in dict.fromkeys(name for row in rows for name in row.metrics):
        own = [row for row in rows if name in row.metrics]
        values = [row.metrics[name] for row in own]
        numbers = [value for value in values if not isinstance(value, str)]
        calls = [row.calls for row in own]
        is_mean = len(numbers) == len(own) and any(calls)
        found[name] = float(np.average(numbers, weights=calls)) if is_mean else values[0]
    return found


def group_rows(rows: Sequence[ProfileRow], *, by_shape: bool = False) -> list[list[ProfileRow]]:
    """Groups rows by kind and name.

    Args:
        by_shape: group also by launch and shapes.
    """
    groups: dict[Hashable, list[ProfileRow]] = {}
    for row in rows:
        key: Hashable = (row.kind, row.name, row.launch, row.call) if by_shape else (
            row.kind, row.name,
        )  # fmt: skip
        groups.setdefault(key, []).append(row)
    return list(groups.values())


def _merged_rows(profiles: Sequence[Profile]) -> tuple[tuple[ProfileRow, ...], list[list[int]]]:
    """Returns (rows, for each profile the new index of each of its rows)."""
    places: dict[Hashable, int] = {}
    found: list[list[ProfileRow]] = []
    place_of: list[list[int]] = []
    for profile in profiles:
        own = []
        for row in profile.rows:
            key = (row.kind, row.name, row.launch, row.call, _is_counter(row))
            if key not in places:
                places[key] = len(found)
                found.append([])
            found[places[key]].append(row)
            own.append(places[key])
        place_of.append(own)
    joined = [join_rows(rows) for rows in found]
    counters = {row.name: row for row in joined if _is_counter(row)}
    timed = {row.name for row in joined if not _is_counter(row) and row.kind == "kernel"}
    kept: list[ProfileRow] = []
    new_place: dict[int, int] = {}
    for place, row in enumerate(joined):
        if _is_counter(row) and row.name in timed:
            continue
        new_place[place] = len(kept)
        counter = counters.get(row.name) if row.kind == "kernel" else None
        kept.append(_with_counters(row, counter) if counter is not None else row)
    # Counters have no events, so the indices of removed rows are never used.
    mapped = [[new_place.get(place, 0) for place in own] for own in place_of]
    return tuple(kept), mapped


def _is_counter(row: ProfileRow) -> bool:
    return row.total_s == 0.0 and bool(row.metrics)


def _with_counters(row: ProfileRow, counter: ProfileRow) -> ProfileRow:
    """Returns a row with the operations and bytes of a counter row, scaled by calls."""
    share = row.calls / counter.calls if counter.calls else 0.0
    moved, flop = row.moved_bytes, row.flop
    if moved is None and counter.moved_bytes is not None:
        moved = counter.moved_bytes * share
    if flop is None and counter.flop is not None:
        flop = counter.flop * share
    return replace(row, moved_bytes=moved, flop=flop, metrics={**counter.metrics, **row.metrics})


def _merged_events(
    profiles: Sequence[Profile], place_of: list[list[int]]
) -> tuple[Events | None, list[str]]:
    having = [i for i, profile in enumerate(profiles) if profile.events is not None]
    if not having:
        return None, []
    epochs = [profiles[i].epoch_s for i in having]
    notes = []
    known = [epoch for epoch in epochs if epoch is not None]
    if len(having) > 1 and len(known) < len(having):
        notes.append("not every file has a start time: each timeline starts at 0")
        known = []
    starts, durations, lanes, rows, names = [], [], [], [], list[str]()
    for i in having:
        profile = profiles[i]
        events, epoch = profile.events, profile.epoch_s
        assert events is not None
        shift = epoch - min(known) if known and epoch is not None else 0.0
        starts.append(events.start_s + shift)
        durations.append(events.duration_s)
        lanes.append(events.lane + len(names))
        rows.append(np.array(place_of[i], np.int64)[events.row])
        names += [f"{Path(profile.source).name}: {lane}" for lane in events.lanes]
    merged = Events(
        np.concatenate(starts), np.concatenate(durations), np.concatenate(lanes),
        np.concatenate(rows), tuple(names),
    )  # fmt: skip
    return merged, notes
