"""What the server says of a program: the same as `cdmpp predict --json`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from cdmpp.serve.reading import ReadProgram
from cdmpp.training.estimates import Estimates
from tvm_helper.predict.answers import Prediction, estimated


def prediction_row(program: ReadProgram, found: Estimates | None, place: int) -> dict[str, Any]:
    """Returns the values of a program on a device.

    Args:
        found: what a model says; None where the program cannot be predicted.
        place: of the program in it.
    """
    if program.asked is None or found is None:
        return _unanswered(program, program.reason)
    one = estimated(program.asked, found, place, name=program.name)
    ends = (one.latency_s, one.mean_s, one.low_s, one.high_s)
    if any(end is not None and not math.isfinite(end) for end in ends) or not one.latency_s:
        return _unanswered(program, "the model has no finite answer to these columns")
    return replace(one, is_scheduled=program.is_scheduled).to_json()


def _unanswered(program: ReadProgram, reason: str | None) -> dict[str, Any]:
    return Prediction(
        program.name, program.operator, program.device, reason=reason
    ).to_json()  # fmt: skip
