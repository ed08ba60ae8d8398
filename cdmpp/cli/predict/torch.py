"""`cdmpp predict --torch MODULE:FACTORY`: time, memory and utilisation of a torch network."""

from __future__ import annotations

import json
import math
import re
import sys
from collections.abc import Sequence
from typing import Literal

import torch

from cdmpp.errors import DataError, UsageError
from cdmpp.networks.graph.factory import load_factory
from cdmpp.networks.predict import Estimate, NetworkPredictor, TorchPrediction
from cdmpp.text import aligned, interval_text, percent_text

_MEMORY = re.compile(r"\s*([0-9]*\.?[0-9]+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)
_POWERS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def predict_torch(
    factory: str,
    model: str,
    labels: Sequence[str],
    *,
    batches: str,
    inputs: Sequence[str],
    memory: str | None,
    method: Literal["fx", "export"],
    as_json: bool,
    is_quiet: bool,
) -> None:
    """Prints what a torch network takes.

    Args:
        factory: MODULE:FACTORY.
        batches: such as `1,8`.
        inputs: such as `3x224x224` or `128:int64`.
        memory: that there is, such as `8GiB`; None = the devices'.
    """
    sizes = _batches(batches)
    shapes, dtypes = _inputs(inputs)
    limit = None if memory is None else parse_memory(memory)
    predictor = NetworkPredictor.load(model)
    try:
        graphs = predictor.graphs(
            load_factory(factory), shapes, sizes, name=factory, method=method, dtypes=dtypes
        )
    except DataError as error:
        raise DataError(str(error).replace("method='export'", "--export")) from error
    found = predictor.predict(graphs, list(labels), memory_limit_bytes=limit)
    if as_json:
        print(json.dumps([one.to_json() for one in found], allow_nan=False))
        return
    _print(found)
    if not is_quiet:
        _print_notes(found, predictor)


def parse_memory(text: str) -> float:
    """Returns bytes: `8GiB` and `8G` are 8 x 1024^3, `8GB` is 8 x 1000^3.

    Raises:
        UsageError: something else, or nothing.
    """
    match = _MEMORY.fullmatch(text)
    value = float(match[1]) if match else 0.0
    if not match or value <= 0:
        raise UsageError(f"--memory {text!r}, expected a size such as 8GiB or 800MB")
    is_decimal = text.strip().lower().endswith("b") and not match[3]
    return float(value * (1000 if is_decimal else 1024) ** _POWERS[match[2].lower()])


def _batches(text: str) -> list[int]:
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) >= 1 for part in parts):
        raise UsageError(f"--batch {text!r}, expected whole numbers from 1 up, e.g. 1,8,32")
    return list(dict.fromkeys(int(part) for part in parts))


def _inputs(texts: Sequence[str]) -> tuple[list[tuple[int, ...]], list[torch.dtype] | None]:
    """Returns shapes and, where one is given, the types of all inputs."""
    shapes, names = [], []
    for text in texts:
        shape, _, name = text.partition(":")
        parts = shape.lower().split("x")
        if not all(part.isdecimal() and int(part) >= 1 for part in parts):
            raise UsageError(
                f"--input {text!r}, expected a shape without the batch such as 3x224x224, or "
                "128:int64"
            )
        shapes.append(tuple(int(part) for part in parts))
        names.append(name)
    if not any(names):
        return shapes, None
    dtypes = [getattr(torch, name or "float32", None) for name in names]
    for name, dtype in zip(names, dtypes, strict=True):
        if not isinstance(dtype, torch.dtype):
            raise UsageError(f"--input type {name!r}, expected a torch type such as int64")
    return shapes, [dtype for dtype in dtypes if dtype is not None]


def _print(found: list[TorchPrediction]) -> None:
    several = len({one.device for one in found}) > 1
    rows = []
    for one in found:
        mark = " !" if one.out_of_distribution else ""
        cells = [
            str(one.batch),
            one.mode,
            interval_text(one.time_s.value, one.time_s.low, one.time_s.high) + mark,
            _bytes(one.memory_bytes),
            percent_text(one.utilisation.value, 0, none="?"),
            _fits(one),
        ]
        rows.append([one.device, *cells] if several else cells)
    headings = ["batch", "mode", "time of an iteration", "peak memory", "utilisation", "fits"]
    device = "" if several else f" on {found[0].device}"
    print(f"{found[0].name}{device}, predicted without running it\n")
    print(aligned([["device", *headings] if several else headings, *rows]))


def _print_notes(found: list[TorchPrediction], predictor: NetworkPredictor) -> None:
    coverage = predictor.trained.intervals.coverage
    if any(one.time_s.low is not None for one in found):
        print(f"\n[ ]: interval for {100 * coverage:.0f} % of architectures never measured")
    limits = {one.memory_limit_bytes for one in found}
    if None not in limits:
        sizes = " and ".join(_size(limit) for limit in sorted(filter(None, limits)))
        print(f"fits: into {sizes}, beside what an empty process with torch takes")
    for device in dict.fromkeys(one.device for one in found):
        guesses = [one for one in found if one.device == device and one.reasons]
        if guesses:
            batches = ", ".join(dict.fromkeys(str(one.batch) for one in guesses))
            print(f"\n! on {device} a guess at batch {batches}; at batch {guesses[0].batch}:")
            for reason in guesses[0].reasons:
                print(f"  {reason}")
    print(
        f"cdmpp: graphs in {1e3 * predictor.extraction_s:.0f} ms, predictions in "
        f"{1e3 * predictor.prediction_s:.0f} ms",
        file=sys.stderr,
    )


def _bytes(found: Estimate) -> str:
    if found.value is None:
        return "?"
    text = _size(found.value)
    if found.low is None or found.high is None:
        return text
    return f"{text} [{_size(found.low)}, {_size(found.high)}]"


def _size(value: float) -> str:
    power = min(4, max(0, int(math.log(max(value, 1.0), 1024))))
    unit = ("B", "KiB", "MiB", "GiB", "TiB")[power]
    return f"{value / 1024**power:.3g} {unit}"


def _fits(one: TorchPrediction) -> str:
    if one.memory_limit_bytes is None:
        return "?"
    return "not sure" if one.fits is None else ("yes" if one.fits else "no")
