"""The operator model's results as text, Markdown, tidy CSV and JSON."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path

from cdmpp.analytic.operators.evaluate import COLUMNS, Score
from cdmpp.analytic.operators.tables import PEERS, TABLES

_MODELS = ("cdmpp", "cdmpp-isolated", *PEERS)
_NOTES = """\
Fitted on the single-operator measurements alone (A100 40 GB, P100, P4, T4, V100). Nothing was
fitted on the rows below, and H100, L4 and A100 80 GB (`unseen`) have no measurement in the fit.
`cdmpp` predicts an operator behind others, whose dispatch by the host is hidden; `cdmpp-isolated`
a call of its own, as the fit's tables measured it. Cells: mean / median absolute error, in percent.
"""


def text_tables(scores: Sequence[Score]) -> str:
    """Returns the tables as Markdown, which reads as text."""
    parts = ["# Operators\n\n", _NOTES]
    parts += ["\n## Instances in whole models, same rows for all\n\n", _instance_table(scores)]
    parts += ["\n## The same by device: cdmpp, then NeuSight\n\n", _device_table(scores)]
    parts += ["\n## One fit alone, by seed\n\n", _seed_table(scores)]
    parts += [
        "\n## Whole models (inference): sum of time x repeat over the traced operators\n\n",
        _whole_table(scores),
    ]
    if any(score.split == "test-shapes" for score in scores):
        parts += ["\n## Other shapes, isolated calls (cdmpp-isolated)\n\n", _test_table(scores)]
    return "".join(parts)


def write_results(scores: Sequence[Score], out: Path, *, command: str, data: Path) -> None:
    """Writes operators.md, operators.csv and operators.json.

    Raises:
        DataError: the folder cannot be written.
    """
    from cdmpp.files.atomic import make_folder, sha256_file, write_atomic, write_json
    from cdmpp.machine import commit, machine, versions

    make_folder(out, what="results")
    text = text_tables(scores) + f"\n```\n{command}\n```\n"
    table = io.StringIO()
    writer = csv.DictWriter(table, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for score in scores:
        for row in score.tidy():
            value = row["value"]
            writer.writerow(row | {"value": f"{value:.7g}"})
    for name, content in (("operators.md", text), ("operators.csv", table.getvalue())):
        write_atomic(out / name, partial(_write, content))
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


def _write(content: str, path: Path) -> None:
    path.write_text(content, encoding="utf-8")


def _instance_table(scores: Sequence[Score]) -> str:
    rows = []
    for family in TABLES:
        for device in ("all", "seen", "unseen"):
            found = _found(scores, "instances", device, family)
            if found:
                count = str(found[0].n)
                cells = [_cell(found, name) for name in _MODELS]
                rows.append([family, device, count, *cells, _ranks(found)])
    return _markdown(["operator", "devices", "n", *_MODELS, "Spearman: cdmpp, neusight"], rows)


def _device_table(scores: Sequence[Score]) -> str:
    devices = _devices(scores, "instances")
    rows = []
    for family in TABLES:
        cells = []
        for device in devices:
            found = _found(scores, "instances", device, family)
            cells.append(f"{_cell(found, 'cdmpp')} vs {_cell(found, 'neusight')}")
        rows.append([family, *cells])
    return _markdown(["operator", *devices], rows)


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
    return _markdown(["operator", *(f"seed {seed}" for seed in seeds)], rows)


def _whole_table(scores: Sequence[Score]) -> str:
    rows = []
    for device in ("all", *_devices(scores, "whole-models")):
        found = _found(scores, "whole-models", device, "all")
        rows.append([device, str(found[0].n), *(_cell(found, name) for name in _MODELS)])
    return _markdown(["devices", "n", *_MODELS], rows)


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
    return _markdown(["operator", "all", *devices], rows)


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


def _markdown(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = [titles, ["---"] * len(titles), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
