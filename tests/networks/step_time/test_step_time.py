"""The step-time model: tables, tracing, training on simulated GPUs, answers."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as parquet
import pytest
from torch import nn

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.networks.dataset.store import read_dataset
from cdmpp.networks.graph.execution import Execution
from cdmpp.networks.graph.torch_graph import torch_graph
from cdmpp.networks.kernels.torch_kernels import torch_kernels
from cdmpp.networks.step_time.fit import (
    StepFitOptions,
    family_folds,
    fit_step_time,
    left_out_logs,
    measured_steps,
)
from cdmpp.networks.step_time.graphs import at_batch, read_graphs, trace_architectures
from cdmpp.networks.step_time.inputs import StepQuestion, StepTimeInputs, rates_of, release
from cdmpp.networks.step_time.macs_baseline import macs_factors
from cdmpp.networks.step_time.memory import largest_batches
from cdmpp.networks.step_time.model import StepTimeModel, StepWidths, way_of
from cdmpp.networks.step_time.runs import architectures, read_runs

_FAMILIES = {"plain": (1, False), "wide": (2, False), "deep": (1, True), "both": (2, True)}


def _network(arch: str, size: int) -> nn.Module:
    """A small convolutional network; `size` is its image's."""
    family, _, depth = arch.rpartition("-")
    scale, is_deep = _FAMILIES[family]
    width = 16 * scale * int(depth)
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, stride=2, padding=1)]
    for _ in range(4 if is_deep else 2):
        layers += [nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, width, 3, padding=1)]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 10))


ARCHITECTURES = [(f"{family}-{depth}", 64) for family in _FAMILIES for depth in (1, 2, 3)]


def _roofline_s(table, device, execution) -> float:
    peak, products, convolutions, bandwidth, _ = rates_of(device, execution)
    flop, moved = table.column("flop"), table.column("bytes")
    each = np.maximum(flop / max(products, convolutions, peak), moved / bandwidth) + 3e-6
    return float((1.7 * each * table.column("count")).sum()) + 1e-4


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    out = tmp_path_factory.mktemp("graphs")
    assert trace_architectures(ARCHITECTURES, out, make=_network, source="test") == {}
    return read_graphs(out)


@pytest.fixture(scope="module")
def table(graphs, tmp_path_factory):
    """Times of simulated GPUs: a fixed share of their rooflines."""
    rows = []
    for device in ("rtx3090", "rtx4090", "h100"):
        for arch, size in ARCHITECTURES:
            for batch in (64, 256):
                for compiled in (False, True):
                    execution = Execution("amp-fp16", compiled=compiled)
                    kernels = torch_kernels(graphs.graph(arch, size, batch), execution)
                    step_s = _roofline_s(kernels, get_device(device), execution)
                    rows.append(
                        {
                            "arch": arch, "family": arch.rpartition("-")[0], "device": device,
                            "mode": "infer", "precision": "amp_fp16", "memory_format": "nchw",
                            "compiled": compiled, "torch": "2.9.1", "img_size": size,
                            "batch_size": batch, "step_ms": 1e3 * step_s, "gmacs": 0.1,
                        }
                    )  # fmt: skip
    path = tmp_path_factory.mktemp("table") / "runs.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path


OPTIONS = StepFitOptions(seeds=1, epochs=30, batch=8, folds=2)


@pytest.fixture(scope="module")
def fitted(table, graphs):
    steps = measured_steps(read_runs(table)[0], graphs)
    return (*fit_step_time(steps, graphs, OPTIONS), steps)


def test_a_network_at_any_batch_is_what_torch_traces(graphs) -> None:
    for batch in (1, 5, 64):
        traced = torch_graph(
            lambda: _network("both-2", 64), [(3, 64, 64)], batch=batch, name="both-2"
        )
        assert graphs.graph("both-2", 64, batch).graph_id == traced.graph_id
    first = graphs.graph("both-2", 64, 2)
    with pytest.raises(DataError, match="expected two batch sizes"):
        at_batch(first, first, 4)
    with pytest.raises(DataError, match="expected two batch sizes"):
        at_batch(first, graphs.graph("plain-1", 64, 3), 4)


def test_tracing_continues_and_names_what_it_cannot(tmp_path) -> None:
    made: list[str] = []

    def make(arch: str, size: int) -> nn.Module:
        made.append(arch)
        if arch == "broken":
            raise RuntimeError("no such network")
        if arch == "stops" and made.count(arch) == 1:
            raise KeyboardInterrupt
        return _network("plain-1", size)

    wanted = [("first", 32), ("broken", 32), ("stops", 32), ("twin/b", 32)]
    with pytest.raises(KeyboardInterrupt):
        trace_architectures(wanted, tmp_path, make=make)
    before = len(made)
    failed = trace_architectures(wanted, tmp_path, make=make)
    assert list(failed) == ["broken@32"]
    assert "no such network" in failed["broken@32"]
    assert "first" not in made[before:]
    found = read_graphs(tmp_path)
    assert set(found.pairs) == {("first", 32), ("stops", 32), ("twin/b", 32)}
    assert len(read_dataset(tmp_path).graphs) == 2  # equal networks are stored once
    with pytest.raises(DataError, match=r"no architecture could be traced: .*no such network"):
        trace_architectures([("broken", 32)], tmp_path / "none", make=make)


def test_rows_that_cannot_be_used_are_counted(tmp_path, table) -> None:
    lines = table.read_text().splitlines()
    names = lines[0].split(",")

    def changed(**values) -> str:
        row = dict(zip(names, lines[1].split(","), strict=True))
        return ",".join((row | values).values())

    path = tmp_path / "runs.csv"
    path.write_text(
        "\n".join(
            [
                lines[0], lines[1], changed(device="abacus"), changed(precision="int3"),
                changed(step_ms=""), changed(step_ms="-1"), changed(batch_size="many"),
                changed(mode="dream"), changed(compiled="perhaps"), changed(memory_format="chwn"),
                changed(batch_size="nan"), changed(img_size="inf"), changed(step_ms="inf"),
                changed(step_ms="nan"), changed(batch_size="0.5"),
            ]
        )
    )  # fmt: skip
    runs, left_out = read_runs(path)
    assert len(runs) == 1
    assert architectures(runs) == [("plain-1", 64)]
    assert left_out == {
        "unknown device abacus": 1, "unknown precision int3": 1,
        "no architecture, batch, image size or time": 7, "cannot read many as a number": 1,
        "unknown mode dream": 1, "`compiled` is perhaps": 1, "unknown memory format chwn": 1,
    }  # fmt: skip
    path.write_text("arch,mode\nresnet50,infer\n")
    with pytest.raises(DataError, match="no column device, precision, img_size"):
        read_runs(path)
    path.with_suffix(".parquet").write_bytes(b"no table")
    with pytest.raises(DataError, match="expected Parquet or CSV"):
        read_runs(path.with_suffix(".parquet"))


def test_families_are_whole_in_a_fold(table) -> None:
    runs = read_runs(table)[0]
    folds = family_folds(runs, 2, seed=0)
    of = {run.family: set() for run in runs}
    for run, fold in zip(runs, folds.tolist(), strict=True):
        of[run.family].add(fold)
    assert all(len(parts) == 1 for parts in of.values())
    assert set(folds.tolist()) == {0, 1}


@pytest.mark.exhaustive
def test_simulated_gpus_are_learned_and_unseen_ones_follow_their_rates(fitted) -> None:
    model, left_out, steps = fitted
    error = np.abs(model.log_seconds(steps.inputs) - steps.log_s)
    assert np.median(error) < 0.05
    assert np.nanmedian(np.abs(left_out.mean - steps.log_s)) < 0.15
    assert np.nanmedian(np.abs(left_out.device - steps.log_s)) < 0.3
    assert model.devices == ("h100", "rtx3090", "rtx4090")


def test_kept_parts_are_not_fitted_again(fitted, tmp_path, monkeypatch) -> None:
    steps = fitted[2]
    few = replace(OPTIONS, epochs=1)
    first = left_out_logs(steps, few, seed=0, keep=tmp_path)
    monkeypatch.setattr("cdmpp.networks.step_time.fit.fit_networks", None)
    assert np.array_equal(left_out_logs(steps, few, seed=0, keep=tmp_path), first)


def test_saved_and_loaded_it_answers_the_same(fitted, graphs, tmp_path) -> None:
    model = fitted[0]
    (tmp_path / "model").mkdir()
    model.save(tmp_path / "model")
    loaded = StepTimeModel.load(tmp_path / "model")
    graph, execution = graphs.graph("both-2", 64, 32), Execution("amp-fp16")
    one, other = (m.estimate(graph, get_device("rtx3090"), execution) for m in (model, loaded))
    assert one == other
    assert one.low_s < one.seconds < one.high_s
    assert not one.doubts
    assert sum(one.parts.values()) == pytest.approx(one.seconds, rel=1e-3)
    (tmp_path / "model" / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(DataError):
        StepTimeModel.load(tmp_path / "model")


def test_what_was_never_measured_is_marked_and_wider(fitted, graphs) -> None:
    model = fitted[0]
    graph = graphs.graph("both-2", 64, 32)

    def width(device: str, execution: Execution) -> tuple[float, int]:
        found = model.estimate(graph, get_device(device), execution)
        return found.high_s / found.seconds, len(found.doubts)

    known = width("rtx3090", Execution("amp-fp16"))
    for device, execution in (
        ("rtx3090", Execution("amp-bf16")),
        ("rtx3090", Execution("amp-fp16", "nhwc")),
        ("rtx3090", Execution("amp-fp16", mode="train")),
        ("mi210", Execution("amp-fp16")),
    ):
        found = width(device, execution)
        assert found[0] > known[0]
        assert found[1] >= 1
    assert width("a100", Execution("amp-fp16"))[1] == 1
    widths = StepWidths({"a": 0.1, "b": 0.2}, {"a": 0.3}, extrapolated=2.0)
    assert widths.of("a", is_known=True) == 0.1
    assert widths.of("c", is_known=True) == pytest.approx(0.4)
    assert widths.of("b", is_known=False) == pytest.approx(0.6)


def test_largest_batches_are_those_below_the_first_that_was_tried(table, graphs) -> None:
    runs = read_runs(table)[0]
    labels = largest_batches(runs, graphs)
    assert labels
    assert {one.run.batch for one in labels} == {64}  # 256 is what the benchmark began with
    assert all(one.fitted < one.failed for one in labels)
    above = [replace(run, batch=16 * run.batch) for run in runs]  # 1,024 is the largest
    assert largest_batches(above, graphs) == []


def test_runs_without_multiply_adds_have_no_baseline(table) -> None:
    runs = [replace(run, macs=None) for run in read_runs(table)[0]]
    assert macs_factors(runs, np.arange(len(runs))) == {}
    runs[0] = replace(runs[0], macs=1e9)
    assert list(macs_factors(runs, np.arange(len(runs)))) == [way_of(runs[0].execution)]


def test_releases_are_in_order() -> None:
    places = [release(one) for one in ("1.12", "1.13", "2.0", "2.4.0", "2.9.1", "2.12", "")]
    assert places == sorted(places)
    assert places[0] == 0.0
    assert places[-1] == 1.0


def test_types_have_their_rates(graphs) -> None:
    v100, a100 = get_device("v100"), get_device("a100")
    assert rates_of(v100, Execution())[1:3] == (v100.peak_fp32_flop_per_s,) * 2
    assert rates_of(a100, Execution())[2] == pytest.approx(a100.peak_tensor_flop_per_s / 2)
    assert rates_of(a100, Execution("amp-fp16"))[1] == a100.peak_tensor_flop_per_s
    assert rates_of(a100, Execution("bfloat16"))[1] == a100.peak_bf16_flop_per_s
    inputs = StepTimeInputs(
        [torch_kernels(graphs.graph("plain-1", 64, 8), Execution())], [a100],
        [StepQuestion(0, 0, Execution())],
    )  # fmt: skip
    assert inputs.kernels(np.arange(1)).features.shape[1] == inputs.width


def test_train_and_evaluate_on_a_table(table, graphs, tmp_path, capsys) -> None:
    folder = tmp_path / "graphs"
    trace_architectures(ARCHITECTURES, folder, make=_network, source="test")
    words = ["networks", "train", "--table", str(table), "--dataset", str(folder), "--json"]
    options = ["--set", "epochs=2", "--set", "seeds=1", "--set", "folds=2"]
    assert main([*words, "--out", str(tmp_path / "run"), *options]) == 0
    metrics = json.loads(capsys.readouterr().out)
    assert metrics["runs"] == 144
    columns = parquet.read_table(tmp_path / "run" / "left_out.parquet").column_names
    assert {"seed0_s", "device_left_out_s", "measured_s"} <= set(columns)
    words = ["networks", "evaluate", str(tmp_path / "run"), "--table", str(table)]
    assert main([*words, "--dataset", str(folder), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["all"]["n"] == found["trained_on"] == 144
    assert {row["device"] for row in found["by_device"]} == {"h100", "rtx3090", "rtx4090"}
    assert {row["family"] for row in found["by_family"]} == set(_FAMILIES)
    assert main([*words, "--dataset", str(folder), "--device", "h100-sxm"]) == 0
    assert "the model was trained on" in capsys.readouterr().out
    words = ["networks", "package", str(tmp_path / "run"), "--licence", "L", "--made-by", "it"]
    assert main([*words, "--out", str(tmp_path / "packaged")]) == 0
    packaged = tmp_path / "packaged" / "step_time"
    card = json.loads((packaged / "card.json").read_text())
    assert (card["model"], card["command"], card["runs"]) == ("step-time", "it", 144)
    first, second = (StepTimeModel.load(one) for one in (tmp_path / "run", packaged))
    assert first.facts == second.facts
    assert first.widths == second.widths


def test_bad_requests(table, tmp_path, capsys) -> None:
    assert main(["networks", "train", "--out", str(tmp_path / "run")]) == 2
    assert "expected --dataset DIR, or --table FILE" in capsys.readouterr().err
    words = ["networks", "train", "--table", str(table), "--out", str(tmp_path / "run")]
    assert main([*words, "--model", "seernet"]) == 2
    assert "--model can only be used with --dataset without --table" in capsys.readouterr().err
    words = ["networks", "evaluate", "pretrained", "--table", str(table)]
    assert main([*words, "--part", "all"]) == 2
    assert "--part can only be used with --dataset without --table" in capsys.readouterr().err
    assert main([*words, "--device", "abacus"]) != 0
    assert "unknown device 'abacus'" in capsys.readouterr().err
    words_of_table = ["networks", "convert", str(table), "--out", str(tmp_path / "out")]
    assert main([*words_of_table, "--to", "published"]) == 2
    assert "--to can only be used with the published layout" in capsys.readouterr().err
    assert main(words) != 0
    assert "no run on a GPU of a traced architecture" in capsys.readouterr().err
    with pytest.raises(UsageError):
        Execution(layout="chwn")  # type: ignore[arg-type]
