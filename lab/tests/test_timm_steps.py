"""The script that times timm's networks on a GPU: configurations and resumption."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

from torch import nn

from cdmpp.networks.step_time.graphs import read_graphs
from lab.gpu_session.timm_steps import Config, Results, configs_of, measure, networks, run_config


def test_the_product_can_be_asked_about_every_network() -> None:
    graphs = read_graphs()
    for one in networks():
        assert (one.name, one.size) in graphs
        assert len(graphs.graph(one.name, one.size, 1).kinds) == one.nodes


def test_every_batch_and_way_occurs_among_the_first_networks() -> None:
    parts = ["eager", "train", "fp32"]
    found = [
        config
        for place, network in enumerate(networks()[:16])
        for config in configs_of(network, place, parts, 256)
    ]
    assert len(set(found)) == len(found)
    infer = Counter(one.batch for one in found if one[3:] == ("infer", False, "nchw", "amp-fp16"))
    assert set(infer) == {1, 16, 64, 256}
    assert min(infer.values()) >= 4
    ways = Counter((one.mode, one.layout, one.dtype) for one in found)
    assert len(ways) == 8
    assert min(ways.values()) >= 7


def test_a_rerun_goes_on_after_a_cut_line(tmp_path: Path) -> None:
    path, config = tmp_path / "steps.jsonl", Config("one", 224, 1)
    Results(path).append(config._asdict() | {"failed": "out of memory"})
    with path.open("a") as file:
        file.write('{"network": "tw')
    again = Results(path)
    assert again.done == {config}
    again.append(Config("two", 224, 1)._asdict() | {"seconds": 0.1})
    assert json.loads(path.read_text().splitlines()[-1])["network"] == "two"
    assert len(Results(path).done) == 2


def test_a_step_is_timed_and_a_failure_is_a_result() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for mode in ("infer", "train"):
        row = run_config(model, Config("small", 16, 2, mode, dtype="float32"), "cpu")
        assert 0.0 < row["fastest_s"] <= row["seconds"]
        assert 3 <= row["repeats"] <= 40
    row = run_config(nn.Linear(5, 5), Config("wrong", 16, 2, dtype="float32"), "cpu")
    assert row["failed"].startswith("RuntimeError")
    calls: list[int] = []
    assert measure(lambda: calls.append(1), "cpu")["repeats"] == 40
    assert len(calls) == 1 + 10 + 40
