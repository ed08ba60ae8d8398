"""What the server says of a program: the same as `cdmpp predict --json`."""

from __future__ import annotations

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
        return Prediction(
            program.name, program.operator, program.device, reason=program.reason
        ).to_json()
    one = estimated(program.asked, found, place, name=program.name)
    return replace(one, is_scheduled=program.is_scheduled).to_json()
