"""Predicting a torch network, from Python and from the command line."""

from __future__ import annotations

import json
import textwrap
from dataclasses import replace

import numpy as np
import pytest
import torch

from cdmpp.analytic.roofline.floor import LEAST_SHARE, least_kernel_s
from cdmpp.cli.main import main
from cdmpp.cli.predict.torch import parse_memory
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.networks.dataset.samples import assemble
from cdmpp.networks.dataset.store import read_dataset, write_dataset
from cdmpp.networks.graph.factory import load_factory
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.networks.run import NetworkRun, train_run
from cdmpp.networks.shape_text import parse_numbers, parse_shape
from tests.networks.synthetic import DEVICE, convolutions, data
from tests.paths import ROOT

NETWORKS = """
    import torch
    from torch import nn

    def net():
        return nn.Sequential(nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1),
                             nn.Flatten(), nn.Linear(16, 10))

    def needs(width):
        return nn.Linear(width, width)

    def number():
        return 3

    def fails():
        raise ValueError("no weights here")

    def ends():
        raise SystemExit(0)

    def doubles():
        return nn.Linear(8, 8, dtype=torch.float64)

    class Dynamic(nn.Module):
        def forward(self, x):
            return x if x.sum() > 0 else 2 * x

    made = nn.ReLU()
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("predict")
    (folder / "nets.py").write_text(textwrap.dedent(NETWORKS))
    (folder / "broken.py").write_text("import not_there_at_all\n")
    (folder / "script.py").write_text("import sys\nsys.exit(0)\n")
    whole = data(40)
    write_dataset(folder / "data", whole.graphs, whole.labels, note={})
    train_run(
        read_dataset(folder / "data"), folder / "run", NetworkRun(model="operator-linear"),
        versions={},
    )  # fmt: skip
    return folder


def predicted(folder, module, input_shapes, *, batches=(1,), name="net", devices=(), limit=None):
    predictor = NetworkPredictor.load(folder / "run")
    graphs = predictor.graphs(module, input_shapes, batches, name=name)
    return predictor.predict(graphs, devices, memory_limit_bytes=limit)


def _predict(folder, *words):
    model = ["--model", str(folder / "run"), "--way", "torch-eager", "-q"]
    return main(["predict", "--torch", *map(str, words), *model])


def test_every_batch_and_mode_has_a_row(folder, capsys):
    code = _predict(
        folder, f"{folder}/nets.py:net", "--batch", "1,8", "--input", "3x32x32", "--json"
    )
    rows = json.loads(capsys.readouterr().out)
    assert code == 0
    assert [(row["batch"], row["mode"]) for row in rows] == [
        (1, "infer"), (1, "train"), (8, "infer"), (8, "train"),
    ]  # fmt: skip
    for row in rows:
        assert row["device"] == DEVICE
        assert row["low_s"] is None or row["low_s"] <= row["latency_s"]
        assert row["memory_bytes"] > 0
        assert 0 < row["utilisation"] <= 1
    assert rows[2]["latency_s"] > rows[0]["latency_s"]


def test_the_command_says_the_same_as_python(folder, capsys):
    _predict(folder, f"{folder}/nets.py:net", "--input", "3x32x32", "--json")
    rows = json.loads(capsys.readouterr().out)
    net = load_factory(f"{folder}/nets.py:net")
    found = predicted(folder, net, [(3, 32, 32)], name=rows[0]["network"])
    assert [one.time_s.value for one in found] == [row["latency_s"] for row in rows]
    assert [one.memory_bytes.high for one in found] == [row["memory_high_bytes"] for row in rows]


def test_the_table_is_for_people(folder, capsys):
    assert _predict(folder, f"{folder}/nets.py:net", "--memory", "1GiB") == 0
    text = capsys.readouterr().out
    assert "without running it" in text
    assert "train" in text
    assert "1 GiB" in text


def test_a_module_does_and_stays_as_it_is(folder):
    module = convolutions([8], 3, has_branch=False)
    before = {name: value.clone() for name, value in module.state_dict().items()}
    predicted(folder, module, [(3, 16, 16)], batches=(2,))
    assert module.training
    for name, value in module.state_dict().items():
        assert torch.equal(value, before[name])


def test_memory_without_an_interval_is_marked(folder, capsys):
    words = f"{folder}/nets.py:net", "--device", DEVICE, "--device", "epyc-avx2-2c"
    assert _predict(folder, *words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    reason = f"memory is predicted as on {DEVICE}, without an interval"
    for row in rows:
        is_own = row["device"] == DEVICE
        assert (row["memory_low_bytes"] is not None) == is_own
        assert (reason in row["reasons"]) != is_own
    assert _predict(folder, *words) == 0
    own, other = capsys.readouterr().out.split("net on epyc-avx2-2c")
    assert "B !" in other
    assert "B !" not in own


def test_nothing_is_run(folder):
    class Loud(torch.nn.Linear):
        def forward(self, values):
            assert not isinstance(values, torch.Tensor) or values.device.type == "meta"
            return super().forward(values)

    found = predicted(folder, Loud(8, 8), [(8,)])
    assert found[0].time_s.value > 0


@pytest.mark.parametrize(
    ("limit", "fits"), [(1e15, True), (1.0, False)], ids=["more than enough", "one byte"]
)
def test_whether_it_fits(folder, limit, fits):
    module = convolutions([8, 16], 3, has_branch=False)
    found = predicted(folder, module, [(3, 16, 16)], limit=limit)
    assert {one.fits for one in found} == {fits}


def test_on_the_edge_it_is_not_sure(folder):
    predictor = NetworkPredictor.load(folder / "run")
    module = convolutions([8, 16], 3, has_branch=False)
    graphs = predictor.graphs(module, [(3, 16, 16)], [1], name="n")
    middle = predictor.predict(graphs)[0].memory_bytes
    assert middle.high is not None
    found = predictor.predict(graphs, memory_limit_bytes=(middle.value + middle.high) / 2)
    assert found[0].fits is None
    most = predictor.predict(graphs, [get_device("t4")])[0].memory_bytes.high
    for share, fits in ((0.95, None), (0.85, True)):  # not all of a device's memory is there
        device = replace(get_device("t4"), mem_bytes=int(most / share))
        assert predictor.predict(graphs, [device])[0].fits is fits


def test_no_answer_is_below_what_the_kernels_take(folder):
    slow = replace(get_device("t4"), name="slow", launch_s=60.0)
    predictor = NetworkPredictor.load(folder / "run")
    module = convolutions([8, 16], 3, has_branch=False)
    graphs = predictor.graphs(module, [(3, 16, 16)], [1], name="net")
    for one in predictor.predict(graphs, [slow]):
        assert one.time_s.value >= 60.0
        assert one.time_s.low is None or one.time_s.low >= 60.0


def test_another_device_is_a_guess_within_what_its_hardware_allows(folder):
    module = convolutions([8, 16], 3, has_branch=False)
    found = predicted(folder, module, [(3, 16, 16)], devices=["a10"])
    assert found[0].out_of_distribution
    for one in found:
        assert one.time_s.low < one.time_s.value < one.time_s.high
        assert one.time_s.low >= least_kernel_s(get_device("h100"))
    with pytest.raises(DeviceError, match="unknown device"):
        predicted(folder, module, [(3, 16, 16)], devices=["tt4"])


@pytest.mark.exhaustive
def test_what_was_measured_lies_within_what_a_device_never_measured_is_told():
    """The shares of the roofline that bound its interval, on the shipped networks."""
    samples = assemble(read_dataset(ROOT / "data" / "networks-cpu"))
    share = samples.roofline_s() / samples.targets[:, :2]
    assert np.isfinite(share).all()
    assert (share >= LEAST_SHARE).sum(axis=0).tolist() == [1017, 1016]
    assert len(share) == 1020
    assert 2.8 < share.max() < 3.0


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["nets.py"], 2, "has no factory"),
        (["nets.py:"], 2, "has no factory"),
        (["not_there.py:net"], 2, "no file"),
        (["not_there_either:net"], 2, "no module"),
        (["nets.py:nett"], 2, "only net, needs"),
        (["nets.py:needs"], 2, "needs arguments"),
        (["nets.py:made"], 2, "is a torch module"),
        (["nets.py:number"], 3, "returned int"),
        (["nets.py:fails"], 3, "no weights here"),
        (["broken.py:net"], 3, "not_there_at_all"),
        (["nets.py:Dynamic"], 3, "nor can torch.fx"),
        (["nets.py:Dynamic", "--export"], 3, "torch.export"),
        (["nets.py:ends"], 3, "factory failed (0)"),
        (["script.py:net"], 3, "SystemExit: 0"),
        (["nets.py:doubles", "--input", "8"], 3, "float64"),
        (["nets.py:net", "--input", "3x8x8:float16"], 3, "float16"),
        (["nets.py:net", "--batch", str(2**62)], 3, f"batch {2**62}"),
        (["nets.py:net", "--batch", str(2**70)], 3, f"batch {2**70}"),
        (["nets.py:net", "--input", "7x8x8"], 3, "input"),
        (["nets.py:net", "--input", "3,8"], 2, "input '3,8'"),
        (["nets.py:net", "--input", "8:int65"], 2, "int65"),
        (["nets.py:net", "--batch", "0"], 2, "--batch '0'"),
        (["nets.py:net", "--batch", "1,x"], 2, "--batch '1,x'"),
        (["nets.py:net", "--batch", "9" * 300], 3, "9" * 300),
        (["nets.py:net", "--input", "3x" + "9" * 300], 3, "net"),
        (["nets.py:net", "--memory", "much"], 2, "--memory 'much'"),
        (["nets.py:net", "--device", "tt4"], 4, "unknown device"),
    ],
)
def test_trouble_is_one_sentence(folder, capsys, monkeypatch, words, code, said):
    monkeypatch.chdir(folder)
    assert _predict(folder, *words) == code
    captured = capsys.readouterr()
    assert said in captured.err
    assert captured.err.count("\n") == 1
    assert captured.out == ""


@pytest.mark.parametrize("option", [["--batch", "2"], ["--input", "3"], ["--memory", "1G"]])
def test_options_of_torch_go_with_torch_only(folder, capsys, option):
    code = main(["predict", "--records", "x.json", "--model", str(folder / "run"), *option])
    assert code == 2
    assert "--torch" in capsys.readouterr().err


def test_the_shipped_model_answers_where_none_is_named(capsys):
    assert main(["predict", "--records", "x.json"]) == 3
    assert "x.json" in capsys.readouterr().err


def test_sizes_of_any_length_are_refused_in_a_sentence():
    for text in ("9" * 309, "9" * 5000):
        assert parse_shape(f"3x{text}") is None
        with pytest.raises(UsageError, match="expected whole numbers from 1 up"):
            parse_numbers(text, "--batch")


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 1024**3), ("8G", 8 * 1024**3), ("8GB", 8e9), ("500 MB", 5e8), ("12", 12)],
)
def test_sizes(text, size):
    assert parse_memory(text) == size


def test_train_and_evaluate_from_the_command_line(folder, tmp_path, capsys):
    words = ["--dataset", str(folder / "data")]
    run = str(tmp_path / "run")
    train = ["networks", "train", *words, "--out", run]
    assert main([*train, "--model", "roofline", "--json"]) == 0
    assert main([*train, "--model", "constant"]) == 2  # a finished run stays as it is
    assert main([*train, "--model", "roofline", "-q"]) == 0
    capsys.readouterr()
    assert main([*train, "--model", "roofline", "--json"]) == 0
    trained = json.loads(capsys.readouterr().out)
    assert main(["networks", "evaluate", run, *words, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["targets"] == trained["test"]
    assert main(["networks", "evaluate", run, *words, "--part", "all"]) == 0
    assert "trained on a part of these samples" in capsys.readouterr().out


def test_bad_input_of_train_is_one_sentence(folder, tmp_path, capsys):
    out = str(tmp_path / "run")
    assert main(["networks", "train", "--dataset", str(tmp_path), "--out", out]) == 3
    assert "not a data set of networks" in capsys.readouterr().err
    words = ["networks", "train", "--dataset", str(folder / "data"), "--out", out]
    assert main([*words, "--set", "residual.hiden=3"]) == 2
    assert "residual.hidden" in capsys.readouterr().err
    assert main([*words, "--device", "t4"]) == 3
    assert DEVICE in capsys.readouterr().err


def test_a_bad_limit_is_refused(folder):
    with pytest.raises(UsageError, match="above 0"):
        predicted(folder, convolutions([8], 3, has_branch=False), [(3, 16, 16)], limit=-1.0)
    with pytest.raises(DataError, match="no model"):
        NetworkPredictor.load(folder)
