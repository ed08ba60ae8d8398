"""Baselines that answer only what they recognise, from a model to the tables."""

from __future__ import annotations

import gzip
import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.conv.shapes import ConvShapes
from cdmpp.analytic.prior import prior_times
from cdmpp.cli.main import main
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError, UsageError
from cdmpp.models.base import CostModel
from cdmpp.models.recognised import ConvBaseline, EmbeddingBaseline
from cdmpp.models.registry import model_class
from cdmpp.predict.estimates import load_trained
from cdmpp.report.run_report import run_tables
from cdmpp.report.tables import Table
from cdmpp.training.baselines import load_baselines
from cdmpp.training.evaluate import evaluate
from cdmpp.training.options import TrainOptions
from cdmpp.training.run import RunResult, train_run
from tests.analytic.test_prior import conv_leaves, programs_of, samples_on
from tests.paths import ROOT

COUNT = 24


@pytest.fixture(scope="module")
def samples() -> Samples:
    """Every other program is a convolution, on a GPU and a CPU; the GPU takes 3 x its model."""
    shapes = [ConvShapes.of(16, 32, 14 + n, 64, 3, 1, 1) for n in range(COUNT // 2)]
    leaves = [conv_leaves(shape) for shape in shapes]
    other = [[leaf | {"float_mul": 0.0} for leaf in program] for program in leaves]
    both = [program for pair in zip(leaves, other, strict=True) for program in pair]
    found = samples_on(programs_of(both), ["v100", "epyc-7452"])
    return replace(found, latency_s=3.0 * np.exp(prior_times(found, "auto").log_s))


@pytest.fixture(scope="module")
def run(samples, tmp_path_factory) -> RunResult:
    options = TrainOptions(
        model="roofline", baselines=("conv", "embedding"), fractions=(0.5, 0.1, 0.4)
    )
    return train_run(options, samples, tmp_path_factory.mktemp("baselines") / "run")


def is_conv(samples: Samples) -> np.ndarray:
    return (samples.program % 2 == 0) & (samples.device == 0)


def test_what_is_not_recognised_has_no_number(samples, tmp_path):
    model = ConvBaseline()
    model.fit(samples, samples, seed=0)
    predicted_s = model.predict(samples)
    assert np.array_equal(np.isfinite(predicted_s), is_conv(samples))
    assert predicted_s[is_conv(samples)] == pytest.approx(samples.latency_s[is_conv(samples)])
    again = ConvBaseline.load(tmp_path, model.save(tmp_path))
    assert np.array_equal(again.predict(samples), predicted_s, equal_nan=True)


@pytest.mark.parametrize("kind", [ConvBaseline, EmbeddingBaseline])
def test_without_a_training_sample_it_says_nothing(samples, kind):
    model: CostModel = kind()
    model.fit(samples.take(np.flatnonzero(~is_conv(samples))), samples, seed=0)
    assert np.isnan(model.predict(samples)).all()


def rows_of(table: Table) -> dict[str, str]:
    """First cell: n."""
    return {row.name: row.cells[0].text for row in table.rows}


def test_every_table_of_a_run_has_them_beside_the_model_on_the_same_samples(run):
    count, n = len(run.test), int(is_conv(run.test).sum())
    assert 0 < n < count / 2
    whole, gpu, cpu = run_tables(run.metrics)
    assert rows_of(whole) == {
        "roofline": f"{count}", "constant": f"{count}", "oracle": f"{count}",
        f"conv ({n} of {count} samples)": f"{n}", "roofline on those of conv": f"{n}",
        "constant on those of conv": f"{n}", f"embedding (0 of {count} samples)": "0",
    }  # fmt: skip
    assert rows_of(gpu)[f"conv ({n} of {count // 2} samples)"] == f"{n}"
    assert f"conv (0 of {count // 2} samples)" in rows_of(cpu)
    assert not any(
        cell.best for table in (whole, gpu, cpu) for row in table.rows for cell in row.cells
        if "conv" in row.name
    )  # fmt: skip
    lines = run.metrics["recognised"]["conv"]
    rows = is_conv(run.test)
    error = np.abs(run.predicted_s["roofline"] / run.test.latency_s - 1.0)[rows]
    assert lines["roofline"]["mape"] == pytest.approx(error.mean())
    assert lines["conv"]["mape"] == pytest.approx(0.0, abs=1e-6)
    json.dumps(run.metrics, allow_nan=False)


def test_evaluate_judges_those_that_the_run_keeps(run, samples):
    trained = load_trained(run.run_dir)
    kept = load_baselines(run.run_dir, ["conv", "constant"])
    values = evaluate(trained, samples, kept, all_tasks=True)
    assert values["recognised"]["conv"]["conv"]["n"] == is_conv(samples).sum()
    assert list(values["recognised"]["conv"]) == ["conv", "roofline", "constant"]
    assert list(values["baselines"]) == ["constant"]
    assert "recognised" not in evaluate(trained, samples)


def test_a_baseline_that_the_run_does_not_keep_is_named(run, tmp_path):
    with pytest.raises(UsageError, match=r"no saved baseline 'gbdt'.*has conv, embedding"):
        load_baselines(run.run_dir, ["gbdt"])
    with pytest.raises(UsageError, match="did you mean 'conv'"):
        load_baselines(run.run_dir, ["conf"])
    (tmp_path / "baselines.json").write_text('{"conv": 3}')
    with pytest.raises(DataError, match="is damaged"):
        load_baselines(tmp_path, ["conv"])


def test_it_is_no_model_of_a_run():
    with pytest.raises(UsageError, match=r"only predicts .*baselines=\[conv,constant\]"):
        model_class("conv")


def small_records(folder: Path) -> Path:
    """Real convolutions and other programs, searched on a V100."""
    source = ROOT / "data" / "ansor-gpu"
    records = folder / "measure_records" / "v100"
    records.mkdir(parents=True)
    files = sorted((source / "measure_records" / "v100").iterdir())
    is_wide = [name.startswith("([conv2d") and ",3,3," in name for name in (p.name for p in files)]
    wide = [path for path, chosen in zip(files, is_wide, strict=True) if chosen]
    other = [path for path in files if "matmul_layer" in path.name or "relu" in path.name]
    for path in [*wide[:6], *other[:6]]:
        lines = gzip.decompress(path.read_bytes()).decode().splitlines(keepends=True)[:2]
        (records / path.name.removesuffix(".gz")).write_text("".join(lines))
    (folder / "network_info").symlink_to(source / "network_info")
    return folder


def test_train_and_evaluate_of_records_with_convolutions(tmp_path, capsys):
    data = ["--dataset", str(small_records(tmp_path / "gpu")), "--cache", str(tmp_path / "cache")]
    asked = ["--jobs", "1", "-q", "--set", "baselines=[conv,embedding]"]
    run = str(tmp_path / "run")
    parts = ["--set", "fractions=[0.5, 0.1, 0.4]"]
    assert main(["train", *data, *asked, *parts, "--model", "roofline", "--out", run]) == 0
    said = capsys.readouterr().out
    assert main(["evaluate", *data, *asked, "--all-tasks", "--model", run]) == 0
    judged = capsys.readouterr().out
    assert "embedding (0 of 24 samples)" in judged
    found = re.search(r"conv \((\d+) of 24 samples\)", judged)
    assert found
    assert 6 <= int(found[1]) <= 12
    assert "roofline on those of conv" in said
    assert "constant on those of conv" in judged
