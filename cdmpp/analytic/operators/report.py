"""The operator model's results as text, Markdown, tidy CSV and JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cdmpp.analytic.operators.evaluate import Score
from cdmpp.analytic.operators.tables import PEERS, TABLES
from cdmpp.text import markdown_table, tidy_csv

_MODELS = ("cdmpp", "cdmpp-isolated", *PEERS)
_NOTES = """\
Fitted on the single-operator measurements alone (A100 40 GB, P100, P4, T4, V100). Nothing was
fitted on the rows below, and H100, L4 and A100 80 GB (`unseen`) have no measurement in the fit.
`cdmpp` predicts an operator behind others, whose dispatch by the host is hidden; `cdmpp-isolated`
a call of its own, as the fit's tables measured it. Cells: mean / median absolute error, in percent.
"""


def text_tables(scores: Sequence[Score]) -> str:
    """Returns the tables as Markdown, which reads as text."""
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
    parts = [f"## {title}\n\n{table}\n" for title, table in tables.items()]
    return "\n".join(["# Operators\n", _NOTES, *parts])


def write_results(scores: Sequence[Score], out: Path, *, command: str, data: Path) -> None:
    """Writes operators.md, operators.csv and operators.json.

    Raises:
        DataError: the folder cannot be written.
    """
    from cdmpp.files.atomic import make_folder, sha256_file, write_json, write_text
    from cdmpp.machine import commit, machine, versions

    make_folder(out, what="results")
    text = text_tables(scores) + f"\n```\n{command}\n```\n"
    write_text(out / "operators.md", text)
    write_text(out / "operators.csv", tidy_csv(row for score in scores for row in score.tidy()))
    files = sorted(path for path in data.rglob("*.csv.gz"))
    write_json(
        out / "operators.json",
        {
            "suite": "operators",
            "command": command,
            "commit": commit(),
            "versions": versions(),
            "machine": machine(),
            "data_hash": {str(path.relative_to(data)): sha256_file(path) for path in files},
        },
    )


def _instance_table(scores: Sequence[Score]) -> str:
    rows = []
    for family in TABLES:
        for device in ("all", "seen", "unseen"):
            found = _found(scores, "instances", device, family)
            if found:
                count = str(found[0].n)
                cells = [_cell(found, name) for name in _MODELS]
                rows.append([family, device, count, *cells, _ranks(found)])
    return markdown_table(["operator", "devices", "n", *_MODELS, "Spearman: cdmpp, neusight"], rows)


def _device_table(scores: Sequence[Score]) -> str:
    devices = _devices(scores, "instances")
    rows = []
    for family in TABLES:
        cells = []
        for device in devices:
            found = _found(scores, "instances", device, family)
            cells.append(f"{_cell(found, 'cdmpp')} vs {_cell(found, 'neusight')}")
        rows.append([family, *cells])
    return markdown_table(["operator", *devices], rows)


def _seed_table(scores: Sequence[Score]) -> str:
    seeds = sorted({score.seed for score in scores} - {"all", "-"}, key=int)
    rows = []
    for family in TABLES:
        cells = [
            _cell(
                [s for s in scores if s.split == "instances" and s.group == family
                 and s.device == "all" and s.seed == seed], "cdmpp")
            for seed in seeds
        ]  # fmt: skip
        rows.append([family, *cells])
    return markdown_table(["operator", *(f"seed {seed}" for seed in seeds)], rows)


def _whole_table(scores: Sequence[Score]) -> str:
    rows = []
    for device in ("all", *_devices(scores, "whole-models")):
        found = _found(scores, "whole-models", device, "all")
        rows.append([device, str(found[0].n), *(_cell(found, name) for name in _MODELS)])
    return markdown_table(["devices", "n", *_MODELS], rows)


def _test_table(scores: Sequence[Score]) -> str:
    devices = _devices(scores, "test-shapes")
    rows = []
    for family in TABLES:
        cells = []
        for device in ("all", *devices):
            found = _found(scores, "test-shapes", device, family)
            text = f"{_cell(found, 'cdmpp-isolated')} ({found[0].n})" if found else "-"
            cells.append(text)
        rows.append([family, *cells])
    return markdown_table(["operator", "all", *devices], rows)


def _found(scores: Iterable[Score], split: str, device: str, group: str) -> list[Score]:
    return [
        score for score in scores
        if (score.split, score.device, score.group) == (split, device, group)
        and score.seed in ("all", "-")
    ]  # fmt: skip


def _devices(scores: Iterable[Score], split: str) -> list[str]:
    names = {score.device for score in scores if score.split == split}
    return sorted(names - {"all", "seen", "unseen"})


def _cell(scores: Iterable[Score], model: str) -> str:
    for score in scores:
        if score.model == model:
            return f"{100 * score.mape:.1f} / {100 * score.median_ape:.1f}"
    return "-"


def _ranks(scores: Iterable[Score]) -> str:
    rank = {score.model: score.rank for score in scores}
    return f"{rank['cdmpp']:.3f}, {rank['neusight']:.3f}"
