"""The page of a run of `cdmpp device add`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.machine_code import read_machine_code
from cdmpp.devices.device_file import load_device_spec
from cdmpp.errors import DataError
from cdmpp.files.atomic import sha256_file, write_text
from cdmpp.predict.estimates import load_trained
from cdmpp.predict.machine_code.known import has_code
from cdmpp.pretrained import PRETRAINED, model_folder
from cdmpp.report.device_curve import curve_page, curve_svg
from cdmpp.report.page import Section
from cdmpp.report.tables import Table, plain_table
from cdmpp.report.tier_tables import ERRORS, INTERVALS, error_cells, interval_cells
from cdmpp.training.evaluate import held_out_part
from cdmpp.training.tiers import judge_tiers
from lab.pages import write_page
from lab.paths import PAGES, ROOT
from lab.shell import cdmpp
from lab.stamp import PROGRAMS, stamp
from tvm_helper.device_add.run import read_curve

#: Held-out programs of the chip that was added -> what the page calls them.
_HELD_OUT = {
    "icelake-kernels": "kernels of networks", "icelake-pasted": "programs as people paste them",
}  # fmt: skip
_TIERS = {"fast": "nothing compiled", "compiled": "with machine code"}


def is_of(run: Path, model: str) -> bool:
    """Returns whether a run started from the weights of a model."""
    base = run / "base"
    files = [path for path in base.rglob("*") if path.is_file()]
    return bool(files) and all(
        (other := model_folder(model) / path.relative_to(base)).is_file()
        and sha256_file(other) == sha256_file(path)
        for path in files
    )


def held_out_table(run: Path, tables: Path, model: str) -> tuple[Table, list[dict[str, Any]]]:
    """Returns the errors on held-out programs of the added chip, before and after it was added.

    Args:
        model: from which the run started.
        tables: folder with the held-out campaigns' tables.

    Raises:
        DataError: they were measured on a chip of another architecture.
    """
    label = run.name.removeprefix("device-")
    added = load_device_spec(run / "devices" / f"{label}.yaml", label)
    rows, values = [], []
    for folder, words in _HELD_OUT.items():
        measured, (code,) = load_samples(tables / folder), read_machine_code(tables / folder)
        (device,) = measured.devices
        if device.architecture != added.architecture:
            raise DataError(
                f"{run} was measured on {added.architecture}, {folder} on {device.architecture}; "
                "add a device of that chip"
            )
        own = replace(code, targets={label: code.targets[device.name]})
        cases = (
            ("zero-shot", model, measured, code),
            ("after device add", str(run), replace(measured, devices=(added,)), own),
        )
        for when, asked, programs, table in cases:
            trained = load_trained(model_folder(asked), with_code=True)
            samples = held_out_part(trained, programs)
            samples = samples.take(has_code(samples, table))
            lines = judge_tiers(trained, samples, [table], trained.estimate(samples))
            for tier, how in _TIERS.items():
                rows.append(
                    [f"{words}, {how}, {when}", *error_cells(lines[tier]),
                     *interval_cells(lines[tier])]
                )  # fmt: skip
                values.append({"programs": folder, "tier": tier, "when": when, **lines[tier]})
    return plain_table(["held-out programs", *ERRORS, *INTERVALS], rows), values


def experiment(
    run: Path = ROOT / "runs" / "device-measured-here",
    tables: Path = ROOT / "cache" / "data",
    model: str = PRETRAINED,
) -> None:
    """Adds this machine if needed, and writes the page of the run (after `make tables`).

    Args:
        tables: folder with the held-out campaigns' tables.
        model: that does not know this machine's chip, from which the run started.

    Raises:
        DataError: the run started from another model.
    """
    if not run.is_dir():
        cdmpp("device add", run.name.removeprefix("device-"), "--from", model, threads=1)
    curve = read_curve(run)
    if not is_of(run, model):
        raise DataError(f"{run}: started from another model than {model}; add the device again")
    write_text(PAGES / "device-add.svg", curve_svg(curve))
    command = "python -m lab run device-add"
    found = stamp(command, schemas=PROGRAMS, models=[model])
    table, held_out = held_out_table(run, tables, model)
    page = curve_page(curve, command=command, plot="device-add.svg")
    page = replace(page, sections=[*page.sections, Section("Held-out programs", tables=[table])])
    print(write_page("device-add", page, {**curve, "held_out": held_out}, found))
