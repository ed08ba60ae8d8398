"""The operator model's results: page, tidy table and where they are from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cdmpp.analytic.operators.tables import PEERS, TABLES
from cdmpp.analytic.scores import Score
from cdmpp.files.atomic import sha256_file, write_text
from cdmpp.report.page import Page, Section
from cdmpp.report.stamp import stamp, write_page
from cdmpp.report.tables import Table, plain_table
from cdmpp.text import tidy_csv

_MODELS = ("cdmpp", "cdmpp-isolated", *PEERS)
_NOTES = (
    "Fitted on single-operator measurements alone (A100 40 GB, P100, P4, T4, V100). Nothing was "
    "fitted on the rows of the tables, and H100, L4 and A100 80 GB (`unseen`) have no measurement "
    "in the fit.",
    "`cdmpp` predicts an operator behind others, whose dispatch by the host is hidden; "
    "`cdmpp-isolated` a call of its own, as the fit's tables measured it.",
)


def results_page(scores: Sequence[Score]) -> Page:
    """Returns the tables."""
    tables = {
        "Instances in whole models, same rows for all": _instance_table(scores),
        "The same by device: cdmpp, then NeuSight": _device_table(scores),
        "One fit alone, by seed": _seed_table(scores),
        "Whole models (inference): sum of time x repeat over the traced operators": _whole_table(
            scores
        ),
    }
    if any(score.split == "test-shapes" for score in scores):
        tables["Other shapes, isolated calls (cdmpp-isolated)"] = _test_table(scores)
    return Page(
        title="Operators",
        lead="Cells: mean / median absolute error, in percent.",
        sections=[Section(title, tables=[table]) for title, table in tables.items()],
        notes=_NOTES,
    )


def write_results(scores: Sequence[Score], out: Path, *, command: str, data: Path) -> None:
    """Writes operators.md, operators.csv and operators.json.

    Raises:
        DataError: the folder cannot be written.
    """
    files = sorted(path for path in data.rglob("*.csv.gz"))
    hashes = {str(path.relative_to(data)): sha256_file(path) for path in files}
    write_page(out, "operators", results_page(scores), {}, stamp(command, data=hashes))
    write_text(
        out / "operators.csv",
        tidy_csv(row for score in scores for row in score.tidy("operators", "neusight")),
    )


def _instance_table(scores: Sequence[Score]) -> Table:
    rows = []
    for family in TABLES:
        for device in ("all", "seen", "unseen"):
            found = _found(scores, "instances", device, family)
            if found:
                ranks = {score.model: score.rank for score in found}
                cells = [_cell(found, name) for name in _MODELS]
                rank = f"{ranks['cdmpp']:.3f}, {ranks['neusight']:.3f}"
                rows.append([family, device, str(found[0].n), *cells, rank])
    return plain_table(["operator", "devices", "n", *_MODELS, "Spearman: cdmpp, neusight"], rows)


def _device_table(scores: Sequence[Score]) -> Table:
    devices = _devices(scores, "instances")
    rows = []
    for family in TABLES:
        by_device = [_found(scores, "instances", device, family) for device in devices]
        cells = [f"{_cell(found, 'cdmpp')} vs {_cell(found, 'neusight')}" for found in by_device]
        rows.append([family, *cells])
    return plain_table(["operator", *devices], rows)


def _seed_table(scores: Sequence[Score]) -> Table:
    seeds = sorted({score.seed for score in scores} - {"all", "-"}, key=int)
    rows = []
    for family in TABLES:
        by_seed = [_found(scores, "instances", "all", family, (seed,)) for seed in seeds]
        rows.append([family, *(_cell(found, "cdmpp") for found in by_seed)])
    return plain_table(["operator", *(f"seed {seed}" for seed in seeds)], rows)


def _whole_table(scores: Sequence[Score]) -> Table:
    rows = []
    for device in ("all", *_devices(scores, "whole-models")):
        found = _found(scores, "whole-models", device, "all")
        rows.append([device, str(found[0].n), *(_cell(found, name) for name in _MODELS)])
    return plain_table(["devices", "n", *_MODELS], rows)


def _test_table(scores: Sequence[Score]) -> Table:
    devices = ("all", *_devices(scores, "test-shapes"))
    rows = []
    for family in TABLES:
        by_device = [_found(scores, "test-shapes", device, family) for device in devices]
        cells = [f"{_cell(f, 'cdmpp-isolated')} ({f[0].n})" if f else "-" for f in by_device]
        rows.append([family, *cells])
    return plain_table(["operator", *devices], rows)


def _found(
    scores: Iterable[Score],
    split: str,
    device: str,
    group: str,
    seeds: Sequence[str] = ("all", "-"),
) -> list[Score]:
    place = (split, device, group)
    return [s for s in scores if (s.split, s.device, s.group) == place and s.seed in seeds]


def _devices(scores: Iterable[Score], split: str) -> list[str]:
    names = {score.device for score in scores if score.split == split}
    return sorted(names - {"all", "seen", "unseen"})


def _cell(scores: Iterable[Score], model: str) -> str:
    for score in scores:
        if score.model == model:
            return f"{100 * score.mape:.1f} / {100 * score.median_ape:.1f}"
    return "-"
