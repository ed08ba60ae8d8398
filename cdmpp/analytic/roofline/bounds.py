"""Lower bounds and rooflines of operators and programs, as values for JSON."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np

from cdmpp.analytic.operators.intervals import packaged_operators
from cdmpp.analytic.operators.model import known_hardware
from cdmpp.analytic.operators.operators import make_operators
from cdmpp.analytic.roofline.floor import (
    floor_on,
    least_work,
    least_work_of_operators,
)
from cdmpp.analytic.roofline.levels import ProgramBound, in_memory, program_bound
from cdmpp.analytic.roofline.operators import operator_bound
from cdmpp.datasets.samples import Samples
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.text import counted

_NOT_JUDGED = (
    "the roofline of a program is not a prediction; cdmpp predict gives a prediction with an "
    "interval"
)


def operator_bounds(
    kind: str, sizes: Mapping[str, float], labels: Sequence[str]
) -> list[dict[str, Any]]:
    """Returns for each GPU the lower bound of an operator (`least_s`, `least_why`), its roofline
    (`seconds`), what bounds it (`why`), the seconds of each level, and the prediction with the
    fitted efficiency (`fitted_s`). The roofline and the prediction have intervals (`low_s`,
    `fitted_low_s` and so on, `interval_source`).

    Raises:
        UsageError: unknown operator, or a size is missing.
        DeviceError: not a GPU, or the registry lacks values of the device.
    """
    known, judged = known_hardware(labels), packaged_operators()
    model = judged.model
    operators = make_operators(
        [kind] * len(labels), {name: [size] * len(labels) for name, size in sizes.items()}
    )
    fitted = model.predict(operators, np.array(labels), known, context="queued")
    rows = []
    for index, label in enumerate(labels):
        launch_s = model.launch_s(label, known[label])
        measured_as = model.measured_as(label, known[label])
        bound = operator_bound(operators, index, known[label], launch_s=launch_s)
        least = least_work_of_operators(operators[np.array([index])])
        floor = floor_on(get_device(label), least)
        fitted_s = float(fitted[index])
        errors = judged.errors_of(kind, measured_as, "queued_log_errors")
        fitted_low_s, fitted_high_s = errors.ends(fitted_s)
        errors = judged.errors_of(kind, measured_as, "roofline_log_errors")
        low_s, high_s = errors.ends(bound.seconds)
        levels = {"compute": bound.compute_s, "dram": bound.dram_s, "l2": bound.l2_s}
        rows.append(
            {
                "device": label,
                "least_s": float(floor.seconds[0]),
                "least_why": floor.why(0),
                "seconds": bound.seconds,
                "low_s": low_s,
                "high_s": high_s,
                "why": bound.sentence(),
                "levels": {**levels, "launch": bound.launch_s},
                "fitted_s": fitted_s,
                "fitted_low_s": fitted_low_s,
                "fitted_high_s": fitted_high_s,
                "interval_source": judged.evidence(kind, measured_as).source,
            }
        )
    return rows


def program_bounds(samples: Samples, program: str) -> list[dict[str, Any]]:
    """Returns for each device of the samples the lower bound of a program (`least_s`, `least_why`),
    its roofline leaf by leaf (`seconds`), what bounds it (`why`), and the seconds of each level
    (None if unknown) and of each leaf. The roofline has no interval (`low_s`, `high_s` are None).

    Args:
        program: prefix of the program's id.

    Raises:
        DataError: no program, or more than one, has this prefix.
    """
    programs = samples.programs
    found = [row for row, name in enumerate(programs.program_id) if str(name).startswith(program)]
    if len(found) != 1:
        raise DataError(
            f"{program!r} begins the id of {counted(len(found), 'program')} of the dataset, "
            "expected one; `cdmpp predict --json` prints the ids"
        )
    start, stop = (int(value) for value in programs.leaf_offset[found[0] : found[0] + 2])
    leaves = np.asarray(programs.leaf_features[start:stop])
    extra = np.asarray(programs.leaf_extra[start:stop])
    least, leaves = least_work(programs, np.array(found[:1])), in_memory(leaves, extra)
    model = packaged_operators().model
    rows = []
    for spec in samples.devices:
        launch_s = 0.0
        if spec.kind == "gpu":
            launch_s = model.launch_s(spec.name, known_hardware([spec.name])[spec.name])
        bound = program_bound(leaves, spec, launch_s=launch_s)
        floor = floor_on(spec, least)
        rows.append(
            {
                "program_id": str(programs.program_id[found[0]]),
                "device": spec.name,
                "least_s": float(floor.seconds[0]),
                "least_why": floor.why(0),
                "seconds": bound.seconds,
                "low_s": None,
                "high_s": None,
                "interval_source": _NOT_JUDGED,
                "why": bound.sentence(),
                "levels": _levels(bound),
                "leaves": [
                    {"leaf": number, **asdict(leaf)} for number, leaf in enumerate(bound.leaves)
                ],
            }
        )
    return rows


def _levels(bound: ProgramBound) -> dict[str, float | None]:
    l2 = [leaf.l2_s for leaf in bound.leaves]
    return {
        "compute": sum(leaf.compute_s for leaf in bound.leaves),
        "dram": sum(leaf.dram_s for leaf in bound.leaves),
        "l2": None if None in l2 else sum(value for value in l2 if value is not None),
        "launch": bound.launch_s,
    }
