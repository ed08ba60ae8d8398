"""The scale of all leaf columns."""

from __future__ import annotations

import math


def signed_log(value: float) -> float:
    """Returns `sign(value) * log2(|value| + 1)`."""
    return -math.log2(1.0 - value) if value < 0 else math.log2(value + 1.0)
