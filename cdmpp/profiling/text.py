"""Profiles, comparisons and watched commands as text tables."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from functools import partial

from cdmpp.profiling.compare import Change
from cdmpp.profiling.explain import BLOCK_TITLES, LATENCY_SHARE, Explained
from cdmpp.profiling.utilisation import Utilisation
from cdmpp.profiling.watch import Watched
from cdmpp.text import aligned, counted, percent_text, seconds_text, shortened

_NAME_WIDTH = 44
_BAR = " .:-=+*#%@"

_time = partial(seconds_text, digits=4)


def table_text(lines: Sequence[Explained], *, top: int) -> str:
    """Returns one table per block, most time first.

    Args:
        top: maximum lines per block; 0 = all.
    """
    parts = []
    for block, title in BLOCK_TITLES.items():
        chosen = [line for line in lines if line.block == block]
        if not chosen:
            continue
        shown = chosen[:top] if top else chosen
        cells = [_HEADER, *(_cells(line) for line in shown)]
        # Empty columns are left out.
        kept = [i for i in range(len(_HEADER)) if i < 6 or any(row[i] != "-" for row in cells[1:])]
        parts.append(f"{title}\n{_table([[row[i] for i in kept] for row in cells])}")
        left = chosen[len(shown) :]
        if left:
            share = 100 * sum(line.share for line in left)
            parts[-1] += (
                f"\n  and {len(left)} more with {share:.1f} % of the time (--top 0 shows all)"
            )
    return "\n\n".join(parts)


def utilisation_text(found: Utilisation) -> str:
    """Returns the device's utilisation in words."""
    text = f"span {_time(found.span_s)}"
    if found.device_share is not None:
        idle = 1.0 - found.device_share
        text += f", device busy {100 * found.device_share:.1f} % of it, idle {100 * idle:.1f} %"
    return text


def compare_text(changes: Sequence[Change], *, top: int) -> str:
    """Returns the changes as a table."""
    header = ["before", "after", "per call", "", "ratio", "p", "verdict", "calls", "name"]
    cells = [header]
    shown = changes[:top] if top else changes
    for change in shown:
        p_value = "-" if change.p_value is None else f"{change.p_value:.2g}"
        cells.append(
            [
                _time(change.total_s[0]) if change.calls[0] else "-",
                _time(change.total_s[1]) if change.calls[1] else "-",
                _time(change.mean_s[0]), _time(change.mean_s[1]),
                "-" if change.ratio is None else f"{change.ratio:.3f}", p_value, verdict(change),
                f"{change.calls[0]}/{change.calls[1]}", shortened(change.short_name, _NAME_WIDTH),
            ]
        )  # fmt: skip
    text = _table(cells)
    if len(shown) < len(changes):
        text += f"\n  and {len(changes) - len(shown)} more (--top 0 shows all)"
    return text


def verdict(change: Change) -> str:
    """Returns a change in a word or two."""
    if change.ratio is None:
        return "new" if not change.calls[0] else "gone" if not change.calls[1] else "-"
    if change.is_significant is None:
        return "not tested"
    if not change.is_significant:
        return "no difference"
    return "slower" if change.ratio > 1.0 else "faster"


def watch_text(watched: Watched) -> str:
    """Returns means, peaks and sparklines of a watched command."""
    found = watched.summary()
    lines = [
        f"{' '.join(watched.command)}: {_time(watched.wall_s)}, exit code {watched.exit_code}, "
        f"{counted(len(watched.samples), 'sample')}"
    ]
    if not watched.samples:
        return lines[0] + "; it ended before the first sample (use a smaller --interval)"
    cores = [sample.cpu_cores for sample in watched.samples]
    lines.append(
        f"  CPU     {found['cpu_cores_mean']:.2f} cores busy on average, at most "
        f"{found['cpu_cores_max']:.2f}   |{spark(cores)}|"
    )
    machine = [sample.machine_share for sample in watched.samples]
    lines.append(
        f"  machine {100 * (found['machine_share_mean'] or 0):.0f} % busy on average   "
        f"|{spark(machine, most=1.0)}|"
    )
    lines.append(f"  memory  {(found['memory_bytes_max'] or 0) / 2**20:.0f} MiB at most")
    for index in sorted({gpu.index for sample in watched.samples for gpu in sample.gpus}):
        busy = [
            gpu.busy_share or 0.0 for sample in watched.samples for gpu in sample.gpus
            if gpu.index == index
        ]  # fmt: skip
        mean = 100 * sum(busy) / len(busy)
        lines.append(f"  GPU {index}   {mean:.0f} % busy on average   |{spark(busy, most=1.0)}|")
    if watched.gpu_note:
        lines.append(f"  no GPU: {watched.gpu_note}")
    return "\n".join(lines)


def spark(values: Sequence[float], *, width: int = 48, most: float | None = None) -> str:
    """Returns values over time as one line of characters, darker for higher values."""
    if len(values) > width:
        edges = [round(i * len(values) / width) for i in range(width + 1)]
        values = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    top = most or max(values, default=0.0) or 1.0
    last = len(_BAR) - 1
    return "".join(_BAR[min(round(last * max(value, 0.0) / top), last)] for value in values)


def legend() -> str:
    """Returns an explanation of the columns."""
    return (
        "share: of the time of the block. GB/s, GFLOP/s: measured, or from the shapes with "
        "every tensor counted once. of peak: above 100 % by caches, a higher clock or TF32. "
        f"latency-bound: below {100 * LATENCY_SHARE:.0f} % of both "
        "peaks. predicted: one call, by cdmpp's models."
    )


_HEADER = [
    "share", "own", "calls", "avg", "min", "max", "GB/s", "of peak", "GFLOP/s", "of peak", "bound",
    "occupancy", "limited by", "predicted", "by", "kind", "name",
]  # fmt: skip


def _table(rows: Sequence[Sequence[str]]) -> str:
    return aligned(rows, "r" * (len(rows[0]) - 1) + "l", key=-1)


def _cells(line: Explained) -> list[str]:
    name = shortened(line.short_name, _NAME_WIDTH)
    if line.shapes:
        name += f"  [{shortened(line.shapes, _NAME_WIDTH)}]"
    return [
        percent_text(line.share, 2), _time(line.own_s), str(line.calls), _time(line.mean_s),
        _time(line.min_s), _time(line.max_s),
        "-" if line.bytes_per_s is None else f"{line.bytes_per_s / 1e9:.3g}",
        percent_text(line.bandwidth_share),
        "-" if line.flop_per_s is None else f"{line.flop_per_s / 1e9:.4g}",
        percent_text(line.peak_share), line.bound or "-", percent_text(line.occupancy),
        ", ".join(each.replace("_", " ") for each in line.limiters) or "-",
        _time(line.predicted_s), " + ".join(line.predicted_by) or "-", line.kind, name,
    ]  # fmt: skip
