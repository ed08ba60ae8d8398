"""The page of a run of `cdmpp device add`."""

from __future__ import annotations

from pathlib import Path

from cdmpp.errors import DataError
from cdmpp.files.atomic import sha256_file, write_text
from cdmpp.files.places import package_folder
from cdmpp.pretrained import DEFAULT
from cdmpp.report.device_curve import curve_page, curve_svg
from lab.pages import write_page
from lab.paths import PAGES, ROOT
from lab.shell import cdmpp
from lab.stamp import PROGRAMS, stamp
from tvm_helper.device_add.run import read_curve


def is_of_shipped(run: Path) -> bool:
    """Returns whether a run started from the weights of the shipped model."""
    base, shipped = run / "base", package_folder("cdmpp.pretrained") / DEFAULT
    files = [path for path in base.rglob("*") if path.is_file()]
    return bool(files) and all(
        (other := shipped / path.relative_to(base)).is_file()
        and sha256_file(other) == sha256_file(path)
        for path in files
    )


def experiment(run: Path = ROOT / "runs" / "device-measured-here") -> None:
    """Adds this machine if needed, and writes the page of the run.

    Raises:
        DataError: the run started from another model than the shipped one.
    """
    if not run.is_dir():
        cdmpp("device add", run.name.removeprefix("device-"), threads=1)
    curve = read_curve(run)
    if curve["model"] != "pretrained" or not is_of_shipped(run):
        raise DataError(
            f"{run}: started from another model than the shipped one; add the device again"
        )
    write_text(PAGES / "device-add.svg", curve_svg(curve))
    command = "python -m lab run device-add"
    found = stamp(command, schemas=PROGRAMS, models=["pretrained"])
    page = curve_page(curve, command=command, plot="device-add.svg")
    print(write_page("device-add", page, curve, found))
