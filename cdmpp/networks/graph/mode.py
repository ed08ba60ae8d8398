"""Whether a network is trained or asked."""

from __future__ import annotations

from typing import Literal, get_args

Mode = Literal["infer", "train"]

MODES: tuple[Mode, ...] = get_args(Mode)
