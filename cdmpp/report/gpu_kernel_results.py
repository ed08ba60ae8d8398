"""The results of the kernel models of today's GPUs: page, tidy table and where they are from."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cdmpp.analytic.gpu_kernels.calls import FAMILIES
from cdmpp.analytic.gpu_kernels.evaluate import (
    DEVELOPMENT_DEVICES,
    EvaluatedKernels,
    mean_over_seeds,
)
from cdmpp.analytic.gpu_kernels.table import FILES
from cdmpp.analytic.scores import Score
from cdmpp.files.atomic import sha256_file, write_text
from cdmpp.report.page import Page, Section
from cdmpp.report.stamp import stamp, write_page
from cdmpp.report.tables import Table, plain_table
from cdmpp.text import tidy_csv

_Means = Mapping[tuple[str, ...], Score]

_NOTES = (
    "Left out: the fit has no row of the device; it knows the device's numbers in the registry and "
    "which software launched the kernels. `cdmpp, one factor`: the same times the best factor on "
    "the device, as the neighbour has it. `roofline`: the floor times one factor, `constant`: one "
    "time for all; both from the other devices.",
    "In the interval: share of the calls in the interval of 90 % that a device has which was not "
    "measured. The other devices were left out of a fit each: a sibling of one (b200, b300, gb300) "
    "has the interval of all their errors together, another device the widest of theirs, of its "
    "vendor's where there are others of it. The rule was made when this column of simpler ones was "
    "known.",
    "Neighbour: the same call on the device whose numbers are nearest, times the factor with the "
    "least error on the device itself, which nobody has who has not measured there; only calls "
    "that both measured.",
    f"Settings were chosen by the errors of {', '.join(DEVELOPMENT_DEVICES)}, each left out in "
    "turn, seed 0. The errors on a100-sxm, b200, b300 and rtx-pro-6000 were computed once; what "
    "their data hold (peaks, floors, the neighbours' ratios) was looked at before.",
    "Larger shapes: of each device, fitted on the rows up to a quarter of the size (operations, "
    "bytes in decode and collectives) that 75 % of its rows have, judged on those above it: at "
    "least four times as large as any in the fit. New shapes: a fifth of the shapes held out.",
)


def results_page(judged: EvaluatedKernels) -> Page:
    """Returns the tables."""
    means = mean_over_seeds(judged.scores)
    return Page(
        title="Kernels of today's GPUs",
        lead="Cells: mean / median absolute error in percent, mean over the seeds.",
        sections=[
            Section("A device left out", tables=[_device_table(means)]),
            Section("A device left out, products by type", tables=[_type_table(means)]),
            Section("Beside the nearest device", tables=[_neighbour_table(means)]),
            Section("New and larger shapes of known devices", tables=[_shape_table(means)]),
            Section("A device left out, by seed: mean error", tables=[_seed_table(judged)]),
            Section("Rows that are judged nowhere", points=_left_out(judged)),
        ],
        notes=_NOTES,
    )


def write_results(judged: EvaluatedKernels, out: Path, *, command: str, data: Path) -> None:
    """Writes gpu-kernels.md, .csv and .json.

    Raises:
        DataError: the folder cannot be written.
    """
    hashes = {name: sha256_file(data / name) for name in FILES.values()}
    write_page(out, "gpu-kernels", results_page(judged), {}, stamp(command, data=hashes))
    rows = (row for score in judged.scores for row in score.tidy("gpu-kernels", "gpu-kernels"))
    write_text(out / "gpu-kernels.csv", tidy_csv(rows))


def _device_table(means: _Means) -> Table:
    models = ("cdmpp", "cdmpp-one-factor", "roofline", "constant")
    rows = []
    for family in FAMILIES:
        for device in _devices(means, family):
            own = means["device-left-out", family, device, "all", "cdmpp"]
            cells = _cells(means, family, device, models)
            rows.append([family, device, str(own.n), *cells, f"{100 * (own.covered or 0):.0f}"])
    names = ["cdmpp", "cdmpp, one factor", "roofline", "constant", "in the interval, %"]
    return plain_table(["kernels", "device", "n", *names], rows)


def _type_table(means: _Means) -> Table:
    devices = _devices(means, "gemm")
    types = sorted({place[3] for place in means if place[1] == "gemm"} - {"all"})
    rows = [
        [name, *(_cell(means, "device-left-out", "gemm", device, name) for device in devices)]
        for name in types
    ]
    return plain_table(["type", *devices], rows)


def _neighbour_table(means: _Means) -> Table:
    rows = []
    for family in FAMILIES:
        for device in _devices(means, family):
            place = ("shared-calls", family, device, "all")
            if (*place, "neighbour") in means:
                cells = [
                    _cell(means, *place, model)
                    for model in ("cdmpp", "cdmpp-one-factor", "neighbour")
                ]
                rows.append([family, device, str(means[*place, "neighbour"].n), *cells])
    return plain_table(
        ["kernels", "device", "n", "cdmpp", "cdmpp, one factor", "neighbour, one factor"], rows
    )


def _shape_table(means: _Means) -> Table:
    rows = []
    for family in FAMILIES:
        for device in _devices(means, family):
            cells = []
            for split in ("new-shapes", "larger-shapes"):
                cells.append(_cell(means, split, family, device))
            rows.append([family, device, *cells])
    return plain_table(["kernels", "device", "new shapes", "larger shapes"], rows)


def _seed_table(judged: EvaluatedKernels) -> Table:
    found = {
        (one.family, one.device, one.seed): one.mape
        for one in judged.scores
        if (one.split, one.group, one.model) == ("device-left-out", "all", "cdmpp")
    }
    seeds = sorted({place[2] for place in found}, key=int)
    rows = [
        [family, device, *(f"{100 * found[family, device, seed]:.1f}" for seed in seeds)]
        for family, device in dict.fromkeys((place[0], place[1]) for place in found)
    ]
    return plain_table(["kernels", "device", *(f"seed {seed}" for seed in seeds)], rows)


def _left_out(judged: EvaluatedKernels) -> list[str]:
    return [
        f"{family}: {count} rows, {why}"
        for family, reasons in judged.left_out.items()
        for why, count in reasons.items()
    ]


def _devices(means: _Means, family: str) -> list[str]:
    return list(dict.fromkeys(place[2] for place in means if place[1] == family))


def _cells(means: _Means, family: str, device: str, models: tuple[str, ...]) -> list[str]:
    return [_cell(means, "device-left-out", family, device, "all", model) for model in models]


def _cell(
    means: _Means, split: str, family: str, device: str, group: str = "all", model: str = "cdmpp"
) -> str:
    one = means.get((split, family, device, group, model))
    return "-" if one is None else f"{100 * one.mape:.1f} / {100 * one.median_ape:.1f}"
