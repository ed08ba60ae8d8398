"""ONNX files of strangers: what the command says of them, and nothing of them is run."""

from __future__ import annotations

import json
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")

import onnx

from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.predict.estimates import load_trained
from cdmpp.pretrained import model_folder
from tests.serve.onnx_files import Node, small_network, write_onnx
from tests.tvm_helper.sampled import sample_target
from tvm_helper.serve.network import network_rows, with_safe_constants
from tvm_helper.tasks.network_tasks import fused_network, network_of_onnx, read_onnx
from tvm_helper.tasks.script import read_script

pytestmark = pytest.mark.tvm

DEVICE = "epyc-avx2-2c"
TABLE = np.ones((4, 8), np.float32)
#: An index far out of the table: TVM would write there while it compiles.
FAR = 99_999_999


@pytest.mark.exhaustive
def test_a_network_is_that_of_the_command_with_its_timeline(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = small_network(tmp_path / "small.onnx")
    trained = load_trained(model_folder("pretrained"))
    (row,) = network_rows(str(path), "small", [get_device(DEVICE)], trained, InputSizes())
    command = ["predict", "--network", str(path), "--device", DEVICE, "--no-machine-code", "--json"]
    assert main([*command, "--quiet"]) == 0
    (expected,) = json.loads(capsys.readouterr().out)
    timeline = row.pop("timeline")
    assert sum(kernel.pop("share") for kernel in row["kernels"]) == pytest.approx(1)
    for kernel in row["kernels"]:
        assert read_script(kernel.pop("tvmscript"))
    assert row == expected
    assert row["low_s"] < row["latency_s"] < row["high_s"]
    ends = [one["start_s"] + one["time_s"] for one in timeline]
    assert max(ends) == pytest.approx(row["latency_s"])
    calls = [one["kernel"] for one in timeline]
    assert [calls.count(place) for place in range(len(row["kernels"]))] == [
        kernel["calls"] for kernel in row["kernels"]
    ]
    assert 2 in [kernel["calls"] for kernel in row["kernels"]]  # one convolution runs twice


def test_open_sizes_are_given_with_the_question(tmp_path: Path) -> None:
    nodes: list[Node] = [("Relu", ["x"], ["y"], {})]
    path = write_onnx(tmp_path / "open.onnx", nodes, {}, x=("n", 8), y=("n", 8))
    trained = load_trained(model_folder("pretrained"))
    asked = (str(path), "open", [get_device(DEVICE)], trained)
    for sizes in (InputSizes(batch=4), InputSizes({"x": (4, 8)})):
        (row,) = network_rows(*asked, sizes)
        assert "T.Buffer((T.int64(4), T.int64(8))" in row["kernels"][0]["tvmscript"]
    with pytest.raises(DataError, match=r"sizes of 'x' .nx8. are dynamic.*batch 1"):
        network_rows(*asked, InputSizes())
    with pytest.raises(DataError, match="inputs x=4"):
        network_rows(*asked, InputSizes({"x": (4,)}))


def test_sizes_that_a_file_has_fixed_are_refused(tmp_path: Path) -> None:
    """They were ignored: the prediction was that of the file's own batch."""
    nodes: list[Node] = [("Relu", ["x"], ["y"], {})]
    path = write_onnx(tmp_path / "fixed.onnx", nodes, {}, x=(2, 8), y=(2, 8))
    trained = load_trained(model_folder("pretrained"))
    asked = (str(path), "fixed", [get_device(DEVICE)], trained)
    with pytest.raises(DataError, match="batch 4: the first axis of its inputs is fixed"):
        network_rows(*asked, InputSizes(batch=4))
    (row,) = network_rows(*asked, InputSizes({"x": (2, 8)}))
    assert row["latency_s"] > 0


def compiled(path: Path, nodes: list[Node], constants: dict[str, Any], y: tuple[int, ...]) -> Any:
    """Has TVM compute the constants of a network, as it does before it is put together."""
    write_onnx(path, nodes, constants, x=(1, 8), y=y)
    module = network_of_onnx(read_onnx(path), "net")
    return fused_network(with_safe_constants(module, "net"), sample_target("llvm"))


@pytest.mark.parametrize(
    ("node", "constants", "name"),
    [
        (
            ("ScatterElements", ["t", "i", "u"], ["c"], {"axis": 0}),
            {"i": np.full((1, 8), FAR), "u": np.ones((1, 8), np.float32)}, "scatter_elements",
        ),
        (("GatherND", ["t", "i"], ["c"], {}), {"i": np.full((4, 1), FAR)}, "gather_nd"),
    ],
)  # fmt: skip
def test_constants_that_write_or_read_anywhere_are_refused(
    tmp_path: Path, node: Node, constants: dict[str, Any], name: str
) -> None:
    nodes: list[Node] = [node, ("Add", ["x", "c"], ["y"], {})]
    with pytest.raises(DataError, match=f"net computes {name} of constants"):
        compiled(tmp_path / "net.onnx", nodes, {"t": TABLE, **constants}, (4, 8))


def test_an_index_into_constants_is_held_to_its_bounds(tmp_path: Path) -> None:
    nodes: list[Node] = [
        ("Shape", ["x"], ["s"], {}), ("Gather", ["s", "i"], ["c"], {"axis": 0}),
        ("Cast", ["c"], ["f"], {"to": onnx.TensorProto.FLOAT}), ("Mul", ["x", "f"], ["y"], {}),
    ]  # fmt: skip
    for index in (1, FAR):
        module = compiled(tmp_path / "net.onnx", nodes, {"i": np.array([index])}, (1, 8))
        assert "multiply" in str(module)


def test_weights_in_another_file_are_refused(tmp_path: Path) -> None:
    nodes: list[Node] = [("Add", ["x", "t"], ["y"], {})]
    path = write_onnx(tmp_path / "net.onnx", nodes, {"t": TABLE}, x=(1, 8), y=(4, 8))
    model = onnx.load(str(path))
    tensor = model.graph.initializer[0]
    tensor.data_location = onnx.TensorProto.EXTERNAL
    tensor.external_data.add(key="location", value="/etc/passwd")
    tensor.ClearField("raw_data")
    onnx.save(model, str(path))
    with pytest.raises(DataError, match="net has its weights in other files"):
        network_rows(str(path), "net", [], None, InputSizes())  # type: ignore[arg-type]


@pytest.mark.slow
def test_a_saved_program_is_read_where_nothing_in_it_would_run(tmp_path: Path) -> None:
    import torch

    path = tmp_path / "net.pt2"
    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.export.save(torch.export.export(module.eval(), (torch.zeros(4, 16),)), path)
    trained = load_trained(model_folder("pretrained"))
    (row,) = network_rows(str(path), "net", [get_device(DEVICE)], trained, InputSizes())
    assert row["latency_s"] > 0
    assert len(row["timeline"]) == sum(kernel["calls"] for kernel in row["kernels"]) > 0
    other = tmp_path / "evil.pt2"
    with zipfile.ZipFile(path) as saved, zipfile.ZipFile(other, "w") as archive:
        for name in saved.namelist():
            archive.writestr(name, saved.read(name))
        archive.writestr(f"{saved.namelist()[0].split('/')[0]}/data/own.pkl", b"cos")
    with pytest.raises(
        DataError, match=r"^mine is not an exported program that can be opened safely"
    ):
        network_rows(str(other), "mine", [get_device(DEVICE)], trained, InputSizes())


def test_names_of_operators_that_are_no_text_are_one_sentence(tmp_path: Path) -> None:
    nodes: list[Node] = [("Relu", ["x"], ["a"], {}), ("Sigmoid", ["a"], ["y"], {})]
    path = write_onnx(tmp_path / "net.onnx", nodes, {}, x=(1, 8), y=(1, 8))
    path.write_bytes(path.read_bytes().replace(b"Relu", b"Rel\xff"))
    with pytest.raises(DataError, match=r"^net: TVM cannot import the network"):
        network_rows(str(path), "net", [], None, InputSizes())  # type: ignore[arg-type]


def test_what_is_no_onnx_file_is_named_as_it_was_sent(tmp_path: Path) -> None:
    path = tmp_path / "0123.onnx"
    path.write_bytes(b"\x80\x04cposix\nsystem\n")
    with pytest.raises(DataError, match=r"^mine\.onnx is not an ONNX file"):
        network_rows(str(path), "mine.onnx", [], None, InputSizes())  # type: ignore[arg-type]
