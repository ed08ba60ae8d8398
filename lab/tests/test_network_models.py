"""The benchmark of whole-network models: cells that continue, and a page made of them."""

from __future__ import annotations

import csv
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
from cdmpp.text import TIDY_COLUMNS
from lab.experiments import networks as network_models
from lab.experiments.networks import OUTSIDE_FILE, fit_cells, measure_outside, write_report
from tests.networks.synthetic import DEVICE, QUICK, data

KINDS = ["residual", "operator-linear", "roofline"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The data set."""
    folder = tmp_path_factory.mktemp("data")
    write_dataset(folder, data().graphs, data().labels, note={})
    return read_dataset(folder)


@pytest.fixture(scope="module")
def made(whole, tmp_path_factory):
    """The data set, the folder of its cells and the packaged model."""
    folder = tmp_path_factory.mktemp("benchmark")
    _fit(whole, folder / "cells")
    train_run(whole, folder / "run", NetworkRun(model="operator-linear"), versions={})
    packaged.package_run(folder / "run", command="c", licence="l", out=folder / "packaged")
    return whole, folder


@pytest.fixture(scope="module")
def speeds(made):
    """How long one network takes to trace and to predict."""
    name, network = next(iter(network_models.OUTSIDE.items()))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packaged, "packaged_folder", lambda: made[1] / "packaged")
        patch.setattr(network_models, "OUTSIDE", {name: network})
        return network_models.speed(count=1)


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
def test_the_page_says_what_the_cells_say(made, speeds, monkeypatch):
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
    write_report(whole, folder / "cells", outside, speed=speeds, folder=out)
    text = (folder / "out" / "networks.md").read_text()
    cell = json.loads((folder / "cells" / "architecture-residual-0.json").read_text())
    assert f"{100 * cell['test']['infer_time_s']['mape']:.2f}" in text
    assert "leaks" in text
    assert "| squeezenet" in text
    with (folder / "out" / "networks.csv").open() as stream:
        table = list(csv.reader(stream))
    assert tuple(table[0]) == TIDY_COLUMNS
    assert {row[2] for row in table[1:]} == {"architecture", "random"}
    about = json.loads((folder / "out" / "networks.json").read_text())
    assert about["speed_ms"]["fx"] > 0
    assert about["outside"][0]["predicted"]["time_s"] > 0


@pytest.mark.exhaustive
def test_a_goal_is_judged_by_an_interval_over_architectures(made, speeds, monkeypatch, tmp_path):
    whole, folder = made
    monkeypatch.setattr(packaged, "packaged_folder", lambda: folder / "packaged")
    (tmp_path / "cells").mkdir()
    for seed in (0, 1):
        fit_cells(
            whole, tmp_path / "cells", models=KINDS, splits=["architecture"], seeds=[seed],
            options=QUICK,
        )  # fmt: skip
    outside, out = tmp_path / OUTSIDE_FILE, tmp_path / "out"
    write_report(whole, tmp_path / "cells", outside, speed=speeds, folder=out)
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
        write_report(whole, tmp_path, tmp_path / OUTSIDE_FILE, speed={}, folder=tmp_path)


@pytest.mark.exhaustive
def test_the_page_tells_noise_with_and_without_the_machines_speed(
    made, speeds, monkeypatch, tmp_path
):
    whole, folder = made
    monkeypatch.setattr(packaged, "packaged_folder", lambda: folder / "packaged")
    twice = {
        "samples": 40.0, "time_median": 0.06, "time_p90": 0.2, "memory_median": 0.01,
        "memory_p90": 0.02, "infer_time_s_half_mean": 0.045, "infer_time_s_half_median": 0.03,
        "infer_memory_bytes_half_mean": 0.005, "infer_memory_bytes_half_median": 0.004,
    }  # fmt: skip
    timed = twice | {"time_median": 0.13, "time_p90": 0.31, "infer_time_s_half_mean": 0.073}
    correction = {"usual_s": {}, "exponents": {"product": 0.36, "copy": 0.08}, "pairs": 40}
    note = {
        "repeatability": twice, "repeatability_as_timed": timed, "speed_correction": correction
    }  # fmt: skip
    write_dataset(folder / "noisy", whole.graphs, whole.labels, note=note)
    noisy = read_dataset(folder / "noisy")
    _fit(noisy, tmp_path / "cells")
    outside, out = tmp_path / OUTSIDE_FILE, tmp_path / "out"
    write_report(noisy, tmp_path / "cells", outside, speed=speeds, folder=out)
    text = (tmp_path / "out" / "networks.md").read_text()
    time, memory = text.split("## Time of a training step")[0], text.split("## Peak memory of")[1]
    assert "| noise between two processes | 4.50 | 3.00 " in time
    assert "| the same, as timed | 7.30 | 3.00 " in time
    assert "noise between two processes | 0.50" in memory
    assert "as timed |" not in memory
    assert "differ by 6.00 % in time" in text
    assert "(exponents from 40 samples measured twice: copy 0.08, product 0.36)" in text
    assert "differ by 13.00 % (median; 90th percentile 31.00 %)" in text
