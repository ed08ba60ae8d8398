"""The operator model beside NeuSight's predictions, and the kernel models on held-out devices."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cdmpp.analytic.gpu_kernels.evaluate import evaluate_kernels
from cdmpp.analytic.gpu_kernels.table import FILES, asked_families
from cdmpp.analytic.operators.evaluate import evaluate
from cdmpp.analytic.operators.model import OperatorModel
from cdmpp.analytic.scores import Score
from cdmpp.cli.analytic.evaluated import kernels_page, operators_page
from cdmpp.cli.analytic.kernels import print_evaluated
from cdmpp.cli.analytic.operator import print_scores
from cdmpp.cli.shared.options import command_line, parse_seeds
from cdmpp.files.atomic import sha256_file
from lab.pages import write_page
from lab.paths import RESULTS, ROOT, SHARED_DATA
from lab.shell import cdmpp
from lab.stamp import stamp


def operators(
    neusight: Path = SHARED_DATA / "neusight",
    model: Path | None = None,
    out: Path = RESULTS,
    is_json: bool = False,
) -> None:
    """Evaluates the operator model beside its baselines and writes the page.

    Without `model`, fits one on NeuSight's training tables.
    """
    if model is None:
        model = ROOT / "runs" / "operators.json"
        cdmpp("analytic operator fit", data=neusight / "train", out=model)
    scores = evaluate(OperatorModel.at(model), neusight)
    files = sorted(neusight.rglob("*.csv.gz"))
    hashes = {str(path.relative_to(neusight)): sha256_file(path) for path in files}
    rows = (row for score in scores for row in _tidy(score, "operators", "neusight"))
    origin = stamp(command_line(), data=hashes)
    write_page("operators", operators_page(scores), {}, origin, rows=rows, folder=out)
    print_scores(scores, is_json=is_json)


def gpu_kernels(
    data: Path = ROOT / "data" / "gpu-kernels",
    out: Path = RESULTS,
    seeds: str = "0,1,2",
    families: str = "",
    is_json: bool = False,
) -> None:
    """Evaluates the kernel models on held-out devices, new shapes and larger shapes; writes the
    page.
    """
    _kernels("gpu-kernels", data, out, seeds, families, is_json)


def llm_kernels(
    data: Path = SHARED_DATA / "llm-kernels",
    out: Path = RESULTS,
    seeds: str = "0",
    families: str = "",
    page: str = "llm-kernels",
    is_json: bool = False,
) -> None:
    """Evaluates the kernels of LLM serving, also with framework versions held out."""
    _kernels(page, data, out, seeds, families, is_json)


def _kernels(name: str, data: Path, out: Path, seeds: str, families: str, is_json: bool) -> None:
    wanted = [one for one in families.split(",") if one]
    judged = evaluate_kernels(data, parse_seeds(seeds), wanted)
    files = sorted({FILES[family] for family in asked_families(data, wanted)})
    hashes = {file: sha256_file(data / file) for file in files}
    rows = (row for score in judged.scores for row in _tidy(score, name, name))
    origin = stamp(command_line(), data=hashes)
    write_page(name, kernels_page(judged), {}, origin, rows=rows, folder=out)
    print_evaluated(judged, is_json=is_json)


def _tidy(score: Score, suite: str, dataset: str) -> Iterator[tuple[object, ...]]:
    """Yields one row of `TIDY_COLUMNS` per metric."""
    group = f"{score.family} {score.group}".strip()
    where = (suite, dataset, score.split, score.device, group, score.model, score.seed)
    values = {
        "mape": score.mape, "median_ape": score.median_ape, "spearman": score.rank,
        "covered": score.covered,
    }  # fmt: skip
    for metric, value in values.items():
        if value is not None:
            yield *where, metric, value, score.n
