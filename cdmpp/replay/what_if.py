"""What-if analysis: scales the times of operators."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from cdmpp.errors import UsageError
from cdmpp.replay.graph import Operator, OperatorGraph


def parse_scale(text: str) -> tuple[str, float]:
    """Returns (operators, factor) of `conv2d=0.5`.

    Raises:
        UsageError: another form, or a negative factor.
    """
    name, separator, value = text.rpartition("=")
    try:
        factor = float(value)
    except ValueError:
        factor = math.nan
    if not (separator and name) or not 0 <= factor < math.inf:
        raise UsageError(
            f"--scale {text!r}: expected NAME=FACTOR with a factor from 0 up, such as conv2d=0.5"
        )
    return name, factor


def scaled_times(
    graph: OperatorGraph, times_s: Sequence[float], scales: Mapping[str, float]
) -> list[float]:
    """Returns the times multiplied by the factors of all matching names.

    A name is an id, a name, a task or a kind, or a part of a fused operator's kind: `conv2d`
    matches `conv2d+add+relu`. Several matching factors multiply.

    Raises:
        UsageError: a name matches no operator.
    """
    factors = [1.0] * len(times_s)
    for name, factor in scales.items():
        fitting = [place for place, one in enumerate(graph.operators) if fits(one, name)]
        if not fitting:
            kinds = sorted({one.kind or one.label for one in graph.operators})
            more = f" and {len(kinds) - 12} more" if len(kinds) > 12 else ""
            raise UsageError(
                f"unknown operator {name!r}; expected one of {', '.join(kinds[:12])}{more}"
            )
        for place in fitting:
            factors[place] *= factor
    return [seconds * factor for seconds, factor in zip(times_s, factors, strict=True)]


def fits(one: Operator, name: str) -> bool:
    """Whether a name matches an operator."""
    return name in (one.id, one.name, one.task, one.kind) or name in one.kind.split("+")
