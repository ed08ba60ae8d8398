"""Torch networks on GPUs in every way of running, by the packaged models."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import UsageError
from cdmpp.networks.graph.execution import DTYPES, LAYOUTS, Execution, Running
from cdmpp.networks.least_time import least_product_seconds
from cdmpp.networks.on_gpu import STEP_RATIO, STEP_TIME
from cdmpp.networks.predict import NetworkPredictor

GPUS = ("rtx3090", "rtx4090", "h100", "t4", "mi210")


def small() -> nn.Module:
    """A convolutional network of the size of a ResNet-18."""
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3)]
    for width, wider in ((64, 64), (64, 128), (128, 256), (256, 512)):
        layers += [
            nn.BatchNorm2d(width), nn.ReLU(), nn.Conv2d(width, wider, 3, 2, 1),
            nn.BatchNorm2d(wider), nn.ReLU(), nn.Conv2d(wider, wider, 3, 1, 1),
        ]  # fmt: skip
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 1000))


@pytest.fixture(scope="module")
def predictor():
    return NetworkPredictor.load()


@pytest.fixture(scope="module")
def graphs(predictor):
    return predictor.graphs(small, [(3, 224, 224)], [256, 1024], name="small")


def _seconds(predictor, graphs, device, running) -> list[float]:
    found = predictor.predict(graphs, [device], running=running)
    return [one.time_s.value for one in found]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("compiled", [False, True])
def test_every_way_has_an_answer_that_is_possible(
    predictor, graphs, dtype, layout, compiled
) -> None:
    for one in predictor.predict(graphs, GPUS, running=Running(dtype, layout, compiled)):
        execution = Execution(dtype, layout, compiled, one.mode)
        assert one.execution == execution
        if one.device == "t4" and "bf" in dtype:
            assert one.time_s.value is None
            assert "no known bfloat16 units" in one.reasons[0]
            continue
        time_s = one.time_s
        assert 0 < time_s.low <= time_s.value <= time_s.high
        if execution.is_half:
            graph = next(graph for graph in graphs if graph.batch == one.batch)
            assert time_s.low >= least_product_seconds(graph, get_device(one.device), execution)
            assert one.method == STEP_TIME
        assert one.memory_bytes.low < one.memory_bytes.value < one.memory_bytes.high
        is_measured = one.device.startswith("rtx") and dtype == "amp-fp16"
        is_measured &= not (layout == "nhwc" and compiled) and (one.mode == "infer" or not compiled)
        if dtype != "float32" or one.mode == "train":
            assert is_measured == (not one.reasons), one.reasons


def test_half_precision_compilation_and_small_batches_are_faster(predictor, graphs) -> None:
    for device in ("rtx3090", "rtx4090", "h100"):
        single, half, compiled = (
            _seconds(predictor, graphs, device, running)
            for running in (Running(), Running("amp-fp16"), Running("amp-fp16", compiled=True))
        )
        for slow, fast, faster in zip(single, half, compiled, strict=True):
            assert faster < fast < slow
        infer, train = half[::2], half[1::2]
        assert infer[0] < infer[1]
        assert all(2 < t / i < 8 for t, i in zip(train, infer, strict=True))


def test_training_in_float32_is_a_multiple_of_inference(predictor, graphs) -> None:
    found = predictor.predict(graphs[:1], ["a100"], running=Running())
    infer, train = found
    assert train.method == STEP_RATIO
    assert 2 < train.time_s.value / infer.time_s.value < 8
    assert train.reasons


def test_modes_are_those_that_were_requested(predictor, graphs) -> None:
    for mode in ("infer", "train"):
        running = Running("amp-fp16", mode=mode)
        found = predictor.predict(graphs, ["rtx4090"], running=running)
        assert {one.mode for one in found} == {mode}


def test_sixteen_bit_modules_are_read_as_such(predictor) -> None:
    shapes, device = [(3, 224, 224)], "rtx4090"
    halves = predictor.graphs(small().half(), shapes, [64], name="small")
    requested = predictor.graphs(small, shapes, [64], name="small")
    assert _seconds(predictor, halves, device, None) == _seconds(
        predictor, requested, device, Running("float16")
    )
    compiled = predictor.graphs(torch.compile(small(), backend="eager"), shapes, [64], name="small")
    assert _seconds(predictor, compiled, device, Running("amp-fp16")) == _seconds(
        predictor, requested, device, Running("amp-fp16", compiled=True)
    )
    with pytest.raises(UsageError, match="its weights are float16, and amp-fp16 was requested"):
        predictor.predict(halves, [device], running=Running("amp-fp16"))


def test_cpus_are_answered_in_float32_only(predictor, graphs) -> None:
    for one in predictor.predict(graphs[:1], ["epyc-9654"], running=Running("amp-bf16")):
        assert one.time_s.value is None
        assert "only be predicted on GPUs" in one.reasons[0]
    module = torch.compile(small(), backend="eager")
    compiled = predictor.graphs(module, [(3, 64, 64)], [1], name="small")
    for one in predictor.predict(compiled, ["epyc-9654"]):
        assert one.time_s.value is not None
        assert any("torch.compile is ignored" in reason for reason in one.reasons)


def test_small_batches_are_marked(predictor) -> None:
    graphs = predictor.graphs(small, [(3, 224, 224)], [1, 256], name="small")
    running = Running("amp-fp16", mode="infer")
    one, many = predictor.predict(graphs, ["rtx4090"], running=running)
    assert "the host may take longer than the GPU" in one.reasons[-1]
    assert not many.reasons
    assert one.time_s.high / one.time_s.value > many.time_s.high / many.time_s.value


def test_predict_and_compare_have_one_answer(tmp_path, capsys) -> None:
    (tmp_path / "nets.py").write_text(
        "from torch import nn\n"
        "def net():\n"
        "    return nn.Sequential(nn.Conv2d(3, 64, 3), nn.ReLU(), nn.Conv2d(64, 64, 3))\n"
    )
    factory = f"{tmp_path / 'nets.py'}:net"
    words = ["--device", "rtx4090", "--batch", "64", "--dtype", "amp-fp16", "--layout", "nhwc"]
    words += ["--mode", "train", "--json"]
    assert main(["predict", "--torch", factory, *words]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert main(["compare", factory, *words]) == 0
    (cell,) = json.loads(capsys.readouterr().out)
    for name in ("latency_s", "low_s", "high_s", "memory_bytes"):
        assert row[name] == cell[name]
    assert (row["way"], row["dtype"], row["layout"]) == ("torch-eager", "amp-fp16", "nhwc")
    assert "training step" in cell["network"]
    assert main(["predict", "--torch", factory, *words, "--way", "tvm-untuned"]) == 2
    assert "networks run by torch" in capsys.readouterr().err
    assert main(["compare", "--transformer", "x=1", "--device", "h100", "--compiled"]) == 2
    assert "--compiled can only be used with" in capsys.readouterr().err


def test_a_compiled_depthwise_convolution_of_2_31_elements_is_marked(predictor) -> None:
    def wide() -> nn.Module:
        return nn.Conv2d(96, 96, 3, 2, 1, groups=96)

    most = (2**31 - 1) // (96 * 256**2)
    graphs = predictor.graphs(wide, [(96, 256, 256)], [most, most + 1], name="wide")
    for compiled in (True, False):
        running = Running("amp-fp16", compiled=compiled, mode="infer")
        found = predictor.predict(graphs, ["rtx4090"], running=running)
        said = [any("2^31" in reason for reason in one.reasons) for one in found]
        assert said == [False, compiled]
        assert not compiled or f"largest batch is {most}" in found[1].reasons[-1]


class Shared(nn.Module):
    """A layer that is used four times, and an embedding whose weight is also the last product's."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer = nn.Embedding(20_000, 1024), nn.Linear(1024, 1024, bias=False)
        self.out = nn.Linear(1024, 20_000, bias=False)
        self.out.weight = self.table.weight

    def forward(self, ids):
        """Returns logits."""
        found = self.table(ids)
        for _ in range(4):
            found = self.layer(found).relu()
        return self.out(found)


@pytest.mark.parametrize(("dtype", "element"), [(None, 4), ("float16", 2), ("amp-fp16", 4)])
def test_no_memory_is_below_that_of_the_weights(predictor, dtype, element) -> None:
    """A network of 24 GiB surely does not fit into 24 GiB: it was "not sure"."""
    parameters = 20_000 * 1024 + 1024**2
    graphs = predictor.graphs(Shared, [(8,)], [1], name="shared", dtypes=[torch.int64])
    assert (graphs[0].parameters, graphs[0].trained) == (parameters, parameters)
    devices = ["h100"] if dtype else ["h100", "epyc-avx512-1c", "epyc-9654"]
    for one in predictor.predict(graphs, devices, running=Running(dtype)):
        least = element * parameters * (2 if one.mode == "train" else 1)
        ends = one.memory_bytes.value, one.memory_bytes.low, one.memory_bytes.high
        assert all(end is None or end >= least for end in ends)
        assert one.memory_bytes.value is not None


def test_a_network_larger_than_the_gpu_does_not_fit(predictor) -> None:
    def large() -> nn.Module:
        return nn.Sequential(*(nn.Linear(16384, 16384) for _ in range(26)))

    graphs = predictor.graphs(large, [(16384,)], [1], name="large")
    infer, train = predictor.predict(graphs, ["rtx4090"])
    assert (infer.fits, train.fits) == (False, False)
