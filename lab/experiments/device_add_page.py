"""The page of a run of `cdmpp device add`: docs/results/device-add.*.

    cdmpp device add measured-here --minutes 10
    python -m lab.experiments.device_add_page runs/device-measured-here

A run that started from another model than the shipped one is refused.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from cdmpp.errors import CdmppError
from cdmpp.files.atomic import sha256_file, write_text
from cdmpp.files.places import package_folder
from cdmpp.pretrained import DEFAULT
from cdmpp.report.device_curve import curve_page, curve_svg
from cdmpp.report.stamp import PROGRAMS, stamp, write_page
from tests.paths import ROOT
from tvm_helper.device_add.run import read_curve

_NAME = "device-add"


def is_of_shipped(run: Path) -> bool:
    """Returns whether a run's start has the weights of the shipped model."""
    base, shipped = run / "base", package_folder("cdmpp.pretrained") / DEFAULT
    files = [path for path in base.rglob("*") if path.is_file()]
    return bool(files) and all(
        (other := shipped / path.relative_to(base)).is_file()
        and sha256_file(other) == sha256_file(path)
        for path in files
    )


def main() -> None:
    """Writes the page of a run."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "results")
    args = parser.parse_args()
    try:
        curve = read_curve(args.run)
    except CdmppError as error:
        sys.exit(str(error))
    if curve["model"] != "pretrained" or not is_of_shipped(args.run):
        sys.exit(
            f"{args.run}: started from another model than the shipped one; add the device again"
        )
    write_text(args.out / f"{_NAME}.svg", curve_svg(curve))
    command = f"python -m lab.experiments.device_add_page {args.run}"
    found = stamp(command, schemas=PROGRAMS, models=["pretrained"])
    page = curve_page(curve, command=command, plot=f"{_NAME}.svg")
    print(write_page(args.out, _NAME, page, curve, found))


if __name__ == "__main__":
    main()
