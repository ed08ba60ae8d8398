"""Checks every measurement of some datasets against its lower bound."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.operators.tables import OperatorTable, read_table
from cdmpp.analytic.roofline.floor import floor_on, least_work_of_operators, sample_floor_s
from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.sources import extracted_folder
from cdmpp.devices.registry import get_device
from cdmpp.text import markdown_table, seconds_text
from lab.pages import write_page
from lab.paths import ROOT, SHARED_DATA
from lab.stamp import stamp

FloatArray = NDArray[np.float64]

#: Factor by which a bound may exceed a measurement: the error of measurements.
TOLERANCE = 1.05
_LISTED = 40


@dataclass(frozen=True)
class Compared:
    """Records of one device in one dataset.

    Attributes:
        bound_s, measured_s: float64 [N], seconds.
        what: [N], a description of each record.
    """

    data: str
    device: str
    bound_s: FloatArray
    measured_s: FloatArray
    what: list[str]

    @property
    def ratio(self) -> FloatArray:
        """float64 [N], bound over measurement."""
        return self.bound_s / self.measured_s


def of_programs(data: str, folder: Path) -> Iterator[Compared]:
    """Yields the measured programs of an extracted dataset, device by device."""
    samples = load_samples(folder)
    bound_s = sample_floor_s(samples)
    operators = samples.programs.operator[samples.program]
    names = samples.programs.program_id[samples.program]
    for index, spec in enumerate(samples.devices):
        rows = np.flatnonzero((samples.device == index) & np.isfinite(samples.latency_s))
        if len(rows):
            what = [f"{operators[row]} {str(names[row])[:12]}" for row in rows]
            yield Compared(data, spec.name, bound_s[rows], samples.latency_s[rows], what)


def of_operators(data: str, folder: Path) -> Iterator[Compared]:
    """Yields the measured framework operators below a folder, device by device."""
    for path in sorted(folder.glob("t*/*.csv.gz")):
        if path.name.startswith("conv"):
            continue  # libraries use algorithms with fewer operations
        table = read_table(path)
        for label in np.unique(table.device):
            part: OperatorTable = table[np.flatnonzero(table.device == label)]
            floor = floor_on(get_device(str(label)), least_work_of_operators(part.operators))
            what = [f"{kind} of {path.name}" for kind in part.operators.kind]
            name = f"{data}/{path.parent.name}/{path.name.partition('.')[0]}"
            yield Compared(name, str(label), floor.seconds, part.latency_s, what)


def page(found: list[Compared]) -> str:
    """Returns the page."""
    rows, broken, total = [], [], 0
    for one in found:
        ratio = one.ratio
        bad = np.flatnonzero(ratio > TOLERANCE)
        total += len(ratio)
        broken += [(one, int(row)) for row in bad]
        middle, high = np.quantile(ratio, [0.5, 0.99])
        rows.append([
            one.data, one.device, f"{len(ratio):,}", f"{middle:.2f}", f"{high:.2f}",
            f"{ratio.max():.2f}", str(len(bad)),
        ])  # fmt: skip
    broken.sort(key=lambda pair: -pair[0].ratio[pair[1]])
    text = (
        "# Lower bounds beside measurements\n\n"
        f"Of {total:,} measurements, {len(broken)} are below their lower bound over "
        f"{TOLERANCE}.\n\n"
        "Bound over measurement: median, 99 % quantile, maximum.\n\n"
    )
    titles = ["data", "device", "n", "median", "99 %", "maximum", "below"]
    text += markdown_table(titles, rows) + "\n"
    if broken:
        listed = [
            [one.data, one.device, one.what[row], seconds_text(one.bound_s[row]),
             seconds_text(one.measured_s[row]), f"{one.ratio[row]:.2f}"]
            for one, row in broken[:_LISTED]
        ]  # fmt: skip
        text += "\n## Measured below the bound\n\n"
        if len(broken) > _LISTED:
            text += f"The {_LISTED} furthest below of {len(broken)}.\n\n"
        text += markdown_table(["data", "device", "what", "bound", "measured", "ratio"], listed)
        text += "\n"
    return text


def experiment(
    autotvm: Path = ROOT / "cache" / "autotvm", operators: Path = SHARED_DATA / "neusight"
) -> None:
    """Compares all datasets of data/ (extracted by `make tables`), AutoTVM's logs and tables of
    framework operators in NeuSight's layout; writes the page.
    """
    found: list[Compared] = []
    for name, folder in _datasets(autotvm).items():
        found += of_programs(name, folder)
    found += of_operators(operators.name, operators)
    print(write_page("bounds", page(found), {}, stamp("python -m lab run bounds")))


def _datasets(autotvm: Path) -> dict[str, Path]:
    data, cache = ROOT / "data", ROOT / "cache"
    packed = sorted(path.parent.name for path in data.glob("metaschedule-cpu*/campaign.tar.xz"))
    own = [name for name in packed if (data / name / "manifest.json").is_file()]
    tables = {name: data / name for name in own}
    tables |= {name: cache / "data" / name for name in packed if name not in own}
    for name in ("tenset-cpu", "ansor-gpu"):
        tables[name] = extracted_folder(data / name, None, cache_dir=cache)
    return tables | {"autotvm": autotvm}
