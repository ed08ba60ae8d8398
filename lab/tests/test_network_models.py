"""The benchmark of whole-network models: resumed cells, and their page."""

from __future__ import annotations

import json
import re

import pytest

from cdmpp.config import to_dict
from cdmpp.errors import DataError
from cdmpp.networks import packaged
from cdmpp.networks.campaign.labels import NetworkTiming
from cdmpp.networks.dataset.store import read_dataset, write_dataset
from cdmpp.networks.graph.execution import MODES
from cdmpp.networks.run import NetworkRun, train_run
from lab.experiments import networks as network_models
from lab.experiments.networks import OUTSIDE_FILE, fit_cells, measure_outside, write_report
from tests.networks.synthetic import DEVICE, QUICK, data

KINDS = ["residual", "operator-linear", "roofline"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The dataset."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder, data().graphs, data().labels, note={})
    return read_dataset(folder)


@pytest.fixture(scope="module")
def made(whole, tmp_path_factory):
    """The dataset, the folder of its cells and the packaged model."""
    folder = tmp_path_factory.mktemp("benchmark")
    _fit(whole, folder / "cells")
    train_run(whole, folder / "run", NetworkRun(model="operator-linear"), versions={})
    packaged.package_run(folder / "run", command="c", licence="l", out=folder / "packaged")
    return whole, folder


def _fit(whole, cells):
    cells.mkdir(exist_ok=True)
    fit_cells(
        whole, cells, models=KINDS, splits=["architecture", "random"], seeds=[0], options=QUICK
    )


@pytest.mark.exhaustive
def test_fitted_cells_are_kept(made):
    whole, folder = made
    cells = folder / "cells"
    before = {path: path.stat().st_mtime_ns for path in cells.iterdir()}
    assert len(before) == 2 * len(KINDS)
    _fit(whole, cells)
    assert {path: path.stat().st_mtime_ns for path in cells.iterdir()} == before


@pytest.mark.exhaustive
def test_the_page_says_what_the_cells_say(made, monkeypatch):
    whole, folder = made
    monkeypatch.setattr(packaged, "packaged_folder", lambda: folder / "packaged")
    rows = [
        {
            "network": "squeezenet", "batch": 1, "mode": "infer", "device": DEVICE, "time_s": 0.03,
            "memory_bytes": 3e7, "utilisation": 1.0,
        }
    ]  # fmt: skip
    (folder / OUTSIDE_FILE).write_text(json.dumps(rows))
    outside, out = folder / OUTSIDE_FILE, folder / "out"
    write_report(whole, folder / "cells", outside, folder=out)
    text = (folder / "out" / "networks.md").read_text()
    cell = json.loads((folder / "cells" / "architecture-residual-0.json").read_text())
    assert f"{100 * cell['test']['infer_time_s']['mape']:.2f}" in text
    assert "leaks" in text
    assert "Mean error: time" in text
    about = json.loads((folder / "out" / "networks.json").read_text())
    assert about["outside"][0]["predicted"]["time_s"] > 0


@pytest.mark.exhaustive
def test_a_goal_is_judged_by_an_interval_over_architectures(made, monkeypatch, tmp_path):
    whole, folder = made
    monkeypatch.setattr(packaged, "packaged_folder", lambda: folder / "packaged")
    (tmp_path / "cells").mkdir()
    for seed in (0, 1):
        fit_cells(
            whole, tmp_path / "cells", models=KINDS, splits=["architecture"], seeds=[seed],
            options=QUICK,
        )  # fmt: skip
    outside, out = tmp_path / OUTSIDE_FILE, tmp_path / "out"
    write_report(whole, tmp_path / "cells", outside, folder=out)
    text = (tmp_path / "out" / "networks.md").read_text()
    found = re.search(
        r"Time of an inference: (.*) % \[(.*), (.*)\], goal 10 % .* of the best", text
    )
    mape, low, high = map(float, found.groups())
    assert low < mape < high
    cell = json.loads((tmp_path / "cells" / "architecture-residual-0.json").read_text())
    errors = cell["architecture_errors"]["infer_time_s"].values()
    assert sum(error for _, error in errors) / sum(n for n, _ in errors) == pytest.approx(
        cell["test"]["infer_time_s"]["mape"]
    )


def test_networks_that_were_measured_are_not_measured_again(tmp_path):
    kept = [
        {"network": name, "batch": batch, "mode": mode, "time_s": 0.03, "predicted": {}}
        for name, (_, _, batches) in network_models.OUTSIDE.items()
        for batch in batches
        for mode in MODES
    ]
    path = tmp_path / OUTSIDE_FILE
    path.write_text(json.dumps(kept))
    note = {"config": {"timing": to_dict(NetworkTiming())}}
    measure_outside(path, note, device=DEVICE, threads=1)
    assert json.loads(path.read_text()) == kept


def test_without_cells_there_is_no_page(whole, tmp_path):
    with pytest.raises(DataError, match="step `fit`"):
        write_report(whole, tmp_path, tmp_path / OUTSIDE_FILE, folder=tmp_path)


@pytest.mark.exhaustive
def test_the_page_tells_the_noise_between_two_processes(made, monkeypatch, tmp_path):
    whole, folder = made
    monkeypatch.setattr(packaged, "packaged_folder", lambda: folder / "packaged")
    note = {"repeatability": {"infer_time_s_half_mean": 0.045, "infer_time_s_half_median": 0.03}}
    write_dataset(folder / "noisy", whole.graphs, whole.labels, note=note)
    noisy = read_dataset(folder / "noisy")
    _fit(noisy, tmp_path / "cells")
    outside, out = tmp_path / OUTSIDE_FILE, tmp_path / "out"
    write_report(noisy, tmp_path / "cells", outside, folder=out)
    text = (tmp_path / "out" / "networks.md").read_text()
    time, others = text.split("## Time of a training step")
    assert "| noise between two processes | 4.50 | 3.00 " in time
    assert "noise between" not in others
