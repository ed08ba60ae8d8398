"""Output of `cdmpp predict` for networks: per device, a line for each way of running."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

from cdmpp.api.predictions import Predictions
from cdmpp.predict.networks import WAYS, NetworkPrediction, with_shares
from cdmpp.text import aligned, interval_text, percent_text, seconds_text, shortened

if TYPE_CHECKING:  # it imports torch
    from cdmpp.networks.prediction import Estimate

_KERNELS = 8


def print_networks(found: Predictions, *, as_json: bool) -> None:
    """Prints predictions of networks."""
    if as_json:
        print(json.dumps(found.to_json(), allow_nan=False))
        return
    answers = [one for one in found if isinstance(one, NetworkPrediction)]
    places = groupby(answers, lambda one: (one.device, one.batch))
    for number, (place, group) in enumerate(places):
        print("\n" if number else "", end="")
        _print_place(*place, list(group))


def _print_place(device: str, batch: int | None, found: Sequence[NetworkPrediction]) -> None:
    size = "" if batch is None else f", batch {batch}"
    print(f"{found[0].name} on {device}{size}, predicted without running it\n")
    rows = [
        [
            _way(one),
            one.mode,
            interval_text(one.latency_s, one.low_s, one.high_s) + (" !" if one.reasons else ""),
        ]
        for one in found
    ]
    print(aligned([["", "mode", "time of an iteration"], *rows]))
    _print_memory(found)
    for one in found:
        if one.kernels:
            _print_kernels(one)
    _print_reasons(found)


def _way(one: NetworkPrediction) -> str:
    if one.eager is None or one.eager.execution.is_plain:
        return WAYS[one.way]
    return f"as torch runs it ({one.eager.execution.text})"


def _print_memory(found: Iterable[NetworkPrediction]) -> None:
    known = [one.eager for one in found if one.eager is not None]
    if not known:
        return
    rows = [
        [
            one.mode,
            _bytes(one.memory_bytes),
            percent_text(one.utilisation.value, 0, none="?"),
            "?" if one.memory_limit_bytes is None
            else "not sure" if one.fits is None else ("yes" if one.fits else "no"),
        ]
        for one in known
    ]  # fmt: skip
    limit = known[0].memory_limit_bytes
    into = "fits" if limit is None else f"fits into {_size(limit)}"
    print("\n" + aligned([["torch", "peak memory", "utilisation", into], *rows]))


def _print_kernels(one: NetworkPrediction) -> None:
    rows = [
        [
            str(kernel.calls),
            shortened(kernel.name, 40),
            seconds_text(kernel.in_network_s),
            percent_text(share, 0),
        ]
        for kernel, share in with_shares(one.kernels)[:_KERNELS]
    ]
    print(f"\n{WAYS[one.way]}: {one.schedule}")
    print(aligned([["calls", "kernel", "time of one", "share"], *rows], key=1))
    if len(one.kernels) > _KERNELS:
        print(f"and {len(one.kernels) - _KERNELS} more kernels (--json has all)")
    dearest = one.kernels[0]
    if dearest.prediction is not None and dearest.prediction.explanation is not None:
        print(f"{dearest.name}: {dearest.prediction.explanation.text(dearest.in_network_s)}")


def _print_reasons(found: Iterable[NetworkPrediction]) -> None:
    marked: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for one in found:
        if one.reasons:
            what = (
                f"{'? no prediction' if one.latency_s is None else '! low confidence'} {_way(one)}"
            )
            marked.setdefault((what, one.reasons), []).append(one.mode)
    for (what, reasons), modes in sorted(marked.items()):
        is_part = any(other == what and one != reasons for other, one in marked)
        print(f"\n{what}{', ' + modes[0] if is_part else ''}:")
        for reason in reasons:
            print(f"  {reason}")


def _bytes(found: Estimate) -> str:
    if found.value is None:
        return "?"
    if found.low is None or found.high is None:
        return f"{_size(found.value)} !"
    return f"{_size(found.value)} [{_size(found.low)}, {_size(found.high)}]"


def _size(value: float) -> str:
    power = min(4, max(0, int(math.log(max(value, 1.0), 1024))))
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{value / 1024**power:.3g} {unit}"
