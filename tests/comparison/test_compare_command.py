"""`cdmpp compare` from its words to its tables, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from tests.comparison.llama import EIGHT_B, eight_b

SMALL = """
import torch
from torch import nn

def small():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(512, 10))
"""
DECODE = ["--transformer", EIGHT_B, "--decode-at", "4096"]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("networks") / "small.py"
    path.write_text(SMALL)
    return f"{path}:small@3x8x8"


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> list[dict]:
    assert main(["compare", *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str]:
    code = main(["compare", *words])
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.strip().count("\n") == 0, captured.err
    return code, captured.err


def test_a_torch_network_on_every_kind_of_device(capsys, network) -> None:
    devices = ["epyc-avx512-1c", "a10", "mi300x", "epyc-9654", "gaudi3"]
    cells = run_json(capsys, network, "--device", ",".join(devices), "--batch", "1,4")
    assert [cell["device"] for cell in cells] == [*devices, *devices]
    assert [cell["method"] for cell in cells[:5]] == [
        "whole-network model", "operator models", "operator rooflines", "whole-network roofline",
        "",
    ]  # fmt: skip
    for cell in cells:
        if cell["method"]:
            assert 0 < cell["low_s"] <= cell["latency_s"] <= cell["high_s"]
            assert cell["throughput_per_s"] == pytest.approx(cell["batch"] / cell["latency_s"])
    assert cells[1]["reasons"] == ["no operator was measured on a10"]
    assert cells[4]["latency_s"] is None
    assert cells[4]["reasons"] == ["`peak_fp32_flop_per_s` of gaudi3 is unknown"]


def test_what_a_users_code_prints_is_no_answer(capsys, tmp_path) -> None:
    """`--json` printed what a file, its factory and its module printed, too."""
    path = tmp_path / "loud.py"
    path.write_text(
        "print('file')\nimport torch\n"
        "class Loud(torch.nn.Module):\n"
        "    def forward(self, x):\n        print('forward')\n        return x.relu()\n"
        "def loud():\n    print('factory')\n    return Loud()\n"
    )
    assert main(["compare", f"{path}:loud@8", "--device", "h100", "--json"]) == 0
    captured = capsys.readouterr()
    assert len(json.loads(captured.out)) == 1
    assert all(word in captured.err for word in ("file", "factory", "forward"))


def test_predict_and_compare_have_one_answer(capsys, network) -> None:
    devices = ["epyc-avx512-1c", "h100", "t4", "a100", "mi300x", "epyc-9654"]
    cells = run_json(capsys, network, "--device", ",".join(devices))
    factory, shape = network.split("@")
    words = ["predict", "--torch", factory, "--input", shape, "--way", "torch-eager"]
    assert main([*words, "--device", ",".join(devices), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    ends = ("latency_s", "low_s", "high_s", "memory_bytes", "reasons")
    found = {(get_device(row["device"]).name, row["mode"]): row for row in rows}
    for cell in cells:
        infer, train = (found[cell["device"], mode] for mode in ("infer", "train"))
        assert [infer[key] for key in ends] == [cell[key] for key in ends]
        assert train["latency_s"] >= infer["latency_s"], "a step goes forward too"
        assert (infer["utilisation"] is None) == (cell["device"] not in devices[::5])
    assert len(found) == 2 * len(cells)


def test_a_transformer_is_never_quicker_than_its_weights_move(capsys) -> None:
    cells = run_json(capsys, *DECODE, "--prefill", "1024", "--device", "h100,l40s,a100-sxm")
    bytes_moved = 2 * (8_030_261_248 - 128256 * 4096)  # the embedding is only looked up
    caches = {"h100": 50 * 2**20, "l40s": 96 * 2**20, "a100-sxm": 40 * 2**20}
    bandwidth = {"h100": 3350e9, "l40s": 864e9, "a100-sxm": 2039e9}
    peak = {"h100": 989.4e12, "l40s": 366.4e12, "a100-sxm": 312e12}
    assert len(cells) == 6
    for cell in cells:
        assert cell["method"] == "serving kernels"
        least_s = (bytes_moved - caches[cell["device"]]) / bandwidth[cell["device"]]
        if "prefill" in cell["network"]:
            flop = 2 * 1024 * (bytes_moved / 2 - 128256 * 4096)
            least_s = flop / peak[cell["device"]]
        assert least_s < cell["low_s"] < cell["latency_s"] < cell["high_s"]
        assert cell["latency_s"] < 10 * least_s
        assert sum(cell["parts"].values()) == pytest.approx(cell["latency_s"])


def test_more_devices_are_quicker_and_hold_less_each(capsys) -> None:
    one, two = run_json(capsys, *DECODE, "--device", "h100", "--tensor-parallel", "1,2")
    assert two["latency_s"] < one["latency_s"]
    assert two["memory_bytes"] < 0.6 * one["memory_bytes"]
    assert two["parts"]["collectives"] > 0


def test_the_tables_and_the_page(capsys, tmp_path, network) -> None:
    page = tmp_path / "page.html"
    words = [network, *DECODE, "--device", "h100,l40s", "--scale", "bandwidth=2"]
    assert main(["compare", *words, "--objective", "cost", "--html", str(page)]) == 0
    out = capsys.readouterr().out
    assert "8b bf16, decode at 4,096, batch 1" in out
    assert "h100 (bandwidth x2) ?" in out
    text = page.read_text("utf-8")
    assert "Hypothetical: h100 (bandwidth x2), l40s (bandwidth x2)" in text
    assert "Verda" in text
    assert "serving kernels" in text


def test_what_does_not_fit_is_one_sentence(capsys) -> None:
    code, text = refused(capsys, *DECODE, "--batch", "64", "--device", "l4")
    assert code == 3
    assert "does not fit: it needs 4" in text
    assert "l4 has 24 GiB" in text


def test_a_batch_that_fits_nowhere_has_a_note_and_no_empty_table(capsys) -> None:
    assert main(["compare", *DECODE, "--batch", "1,4096", "--device", "h100"]) == 0
    _, large = capsys.readouterr().out.split("batch 4096\n")
    assert large.startswith("\n  h100: does not fit: it needs ")
    assert "latency [interval]" not in large


def test_a_torch_network_that_does_not_fit_is_one_sentence(capsys, tmp_path, network) -> None:
    path = tmp_path / "tiny.yaml"
    path.write_text("devices: {tiny: {kind: gpu, mem_bytes: {value: 4096, source: a toy board}}}")
    code, text = refused(capsys, network, "--device-spec", str(path))
    assert code == 3
    assert "does not fit: it needs" in text
    assert "tiny has" in text


def test_a_type_that_a_device_does_not_have_is_one_sentence(capsys) -> None:
    words = [*DECODE[:1], eight_b(dtype="fp8"), *DECODE[2:], "--device", "a100-sxm"]
    code, text = refused(capsys, *words)
    assert code == 3
    assert "a100-sxm has no known rate for fp8" in text


def test_a_gpu_without_bf16_names_the_type_that_it_has(capsys) -> None:
    words = ["--model", "meta-llama/Llama-3.1-8B", "--decode-at", "8", "--device", "t4"]
    assert (
        "for bf16 (`peak_bf16_flop_per_s`); predict it with --precision fp16"
        in refused(capsys, *words)[1]
    )
    (cell,) = run_json(capsys, *words, "--precision", "fp16")
    assert cell["latency_s"] > 0.03


@pytest.mark.parametrize(
    "words",
    [["--prefill", "512"], ["--concurrency", "4", "--input-tokens", "9", "--output-tokens", "9"]],
)
def test_a_cpu_that_is_asked_for_a_language_model_names_gpus(capsys, words) -> None:
    """Was a missing rate for bf16, or too little memory."""
    code, text = refused(
        capsys, "--model", "Qwen/Qwen3-30B-A3B", *words, "--device", "epyc-avx2-1c"
    )
    assert code == 3
    assert "epyc-avx2-1c is a CPU, and language models are predicted for GPUs" in text
    assert "h100, l40s, b200 (all: cdmpp device list --kind gpu)" in text


def test_a_price_in_another_currency_is_one_sentence(capsys, tmp_path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "{provider: Mine, region: here, currency: EUR, date: 2026-05-01, source: contract, "
        "devices: {h100: {per_hour: 2}}}"
    )
    code, text = refused(capsys, *DECODE, "--device", "h100", "--prices", str(path))
    assert code == 3
    assert "prices are in EUR" in text


def test_an_unknown_device_is_one_sentence_with_the_nearest(capsys) -> None:
    code, text = refused(capsys, *DECODE, "--device", "h1000")
    assert code == 4
    assert "unknown device 'h1000', did you mean 'h100'" in text


def test_nothing_to_compare_and_passes_without_a_number(capsys) -> None:
    assert refused(capsys, "--device", "h100")[0] == 2
    assert "nothing to compare" in refused(capsys, *DECODE[:2], "--device", "h100")[1]
    assert "--batch '0'" in refused(capsys, *DECODE, "--batch", "0", "--device", "h100")[1]
    assert "--batch ','" in refused(capsys, *DECODE, "--batch", ",", "--device", "h100")[1]
    assert "no device" in refused(capsys, *DECODE)[1]


def test_what_would_change_nothing_is_one_sentence(capsys, network, tmp_path) -> None:
    path = tmp_path / "net.pt2"
    for option in ("--prefill", "--decode-at", "--tensor-parallel"):
        code, text = refused(capsys, network, option, "2", "--device", "t4")
        assert (code, option in text) == (2, True)
    assert "--prefill N" in refused(capsys, network, *DECODE[:2], "--device", "t4")[1]
    assert (
        "--batch can only be used"
        in refused(capsys, str(path), "--batch", "8", "--device", "t4")[1]
    )
    assert (
        "--export can only be used" in refused(capsys, str(path), "--export", "--device", "t4")[1]
    )


def test_what_has_one_name_is_told_apart(capsys, network) -> None:
    again = f"{network.partition('@')[0]}@3x8x8:float32"
    cells = run_json(capsys, network, network, again, "--device", "t4")
    assert [cell["network"].partition(" ")[0] for cell in cells] == [network, again]
    code, text = refused(capsys, *DECODE, *DECODE[:2], "--device", "h100")
    assert code == 2
    assert "two models have the name '8b'" in text


@pytest.mark.slow
def test_dynamic_shapes_are_one_sentence(capsys, tmp_path) -> None:
    import torch
    from torch import nn

    module, example = nn.Linear(4, 2), (torch.zeros(3, 4),)
    dynamic = ({0: torch.export.Dim("n", min=2, max=64)},)
    path = tmp_path / "dynamic.pt2"
    torch.export.save(torch.export.export(module, example, dynamic_shapes=dynamic), path)
    code, text = refused(capsys, str(path), "--device", "h100")
    assert code == 3
    assert "dynamic shapes" in text
    fixed = tmp_path / "fixed.pt2"
    torch.export.save(torch.export.export(module, example), fixed)
    (cell,) = run_json(capsys, str(fixed), "--device", "h100")
    assert cell["batch"] == 3


@pytest.mark.parametrize(
    ("axis", "message"),
    [("n", "the sizes of 'x' (nx4) are dynamic"), (0, "the sizes of 'x' (?x4) are dynamic")],
)
def test_dynamic_and_empty_shapes_of_onnx_are_one_sentence(
    capsys, tmp_path: Path, axis: str | int, message: str
) -> None:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    sides = [helper.make_tensor_value_info(name, kind, [axis, 4]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", sides[:1], sides[1:])
    path = tmp_path / "dynamic.onnx"
    onnx.save(helper.make_model(graph), path)
    code, text = refused(capsys, str(path), "--device", "h100")
    assert code == 3
    assert message in text


@pytest.mark.tvm
def test_an_onnx_file_on_this_cpu(capsys, tmp_path: Path) -> None:
    """`predict` answered, `compare` wanted a device of the registry."""
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("tvm")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    sides = [helper.make_tensor_value_info(name, kind, [8, 64]) for name in ("x", "y")]
    graph = helper.make_graph([helper.make_node("Relu", ["x"], ["y"])], "g", sides[:1], sides[1:])
    path, own = tmp_path / "relu.onnx", tmp_path / "own.yaml"
    onnx.save(helper.make_model(graph), path)
    own.write_text("devices: {own: {kind: gpu, mem_bytes: {value: 4096, source: a toy board}}}")
    devices = ["--device", "this-cpu", "--device-spec", str(own)]
    here, described = run_json(capsys, str(path), *devices)
    assert here["low_s"] <= here["latency_s"] <= here["high_s"]
    assert "cdmpp predict FILE.onnx --device-spec YAML" in described["reasons"][0]


def test_a_page_is_not_written_over_something_else(tmp_path, capsys):
    """`compare network.pt2 --html network.pt2` lost the network."""
    mine = tmp_path / "network.pt2"
    mine.write_text("mine")
    words = ["compare", "--model", "Qwen/Qwen3-32B", "--device", "h100", "--decode-at", "8"]
    assert main([*words, "--html", str(mine)]) == 2
    assert "network.pt2 exists and is not an HTML page" in capsys.readouterr().err
    assert mine.read_text() == "mine"
    page = tmp_path / "page.html"
    assert [main([*words, "--html", str(page)]) for _ in range(2)] == [0, 0]
    load = [*words[:-2], "--concurrency", "2", "--input-tokens", "8", "--output-tokens", "8"]
    assert main([*load, "--html", str(page)]) == 2
    assert "there is no page of a server under load" in capsys.readouterr().err
