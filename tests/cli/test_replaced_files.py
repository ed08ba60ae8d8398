"""What a command wrote may be written again; a file of somebody else is refused and stays."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.conv.algorithms import find_variant
from cdmpp.analytic.conv.seer.workbook import write_workbook
from cdmpp.analytic.embedding.cpu import CONSTANTS_SCHEMA
from cdmpp.cli.analytic.conv_models import error_histogram
from cdmpp.cli.main import main
from cdmpp.files.atomic import write_json
from cdmpp.files.places import package_folder
from cdmpp.replay.calibration import write_gap
from cdmpp.replay.traces import overheads
from tests.analytic.conv.conv_synthetic import grid, kernel_table

CONV, WORKBOOK = ["analytic", "conv"], "algo2_32x32"
#: Command before the option, the option, the file below it that is written.
COMMANDS = {
    "overheads": (["replay", "trace.json"], "--save-overheads", ""),
    "gap": (["replay", "net.onnx", "--measure"], "--calibrate-gap", ""),
    "curve": (["device", "curve", "run"], "--plot", ""),
    "constants": (["analytic", "embedding", "fit", "--data", "x"], "--out", ""),
    "operators": (["analytic", "operator", "fit", "--data", "x"], "--out", ""),
    "kernels": (["analytic", "kernels", "fit", "--data", "x"], "--out", "kernels.json"),
    "layers": ([*CONV, "fit", "--layers", "x", "--device", "t4"], "--out", "conv.json"),
    "conv": ([*CONV, "fit", "--tables", "x", "--device", "t4"], "--out", ""),
    "rows": ([*CONV, "collect", "--list", "x"], "--out", ""),
    "counters": ([*CONV, "collect", "--list", "x", "--counters"], "--out", f"{WORKBOOK}.train.csv"),
    "nvprof": (
        [*CONV, "from-nvprof", "--trace", "x", "--metrics", "x", "--list", "x", "--algorithm",
         "gemm", "--device", "titan-xp"], "--out", f"{WORKBOOK}.train.csv",
    ),
    "conv plots": ([*CONV, "evaluate", "--layers", "x"], "--plots", "errors.svg"),
    "embedding plots": (
        ["analytic", "embedding", "evaluate", "--data", "x"], "--plots", "histogram.svg"
    ),
}  # fmt: skip


def written(name: str, path: Path) -> None:
    """Writes what the command writes, or how it begins."""
    shipped = {"operators": "operators/operators.json", "kernels": "gpu_kernels/kernels.json"}
    shipped["layers"] = "conv/conv.json"
    if name in shipped:
        path.write_bytes((package_folder("cdmpp.pretrained") / shipped[name]).read_bytes())
    elif name == "gap":
        write_gap(path, 1e-6, {})
    elif name in ("overheads", "constants", "conv"):
        formats = {
            "overheads": {"format": overheads.FORMAT}, "constants": {"schema": CONSTANTS_SCHEMA},
            "conv": {"format": "cdmpp-conv-seer/1"},
        }  # fmt: skip
        write_json(path, formats[name])
    elif name in ("counters", "nvprof"):
        table = kernel_table(find_variant(WORKBOOK), grid(kernels=(3,), strides=(1,), padding=1))
        assert write_workbook(path.parent / WORKBOOK, {"train": table}) == [path]
    elif "plot" in name:
        path.write_text(error_histogram(np.zeros(3)))
    else:
        path.write_text({"curve": '<svg xmlns="x">', "rows": "device,n,time_ms,reason\n"}[name])


@pytest.mark.parametrize("name", COMMANDS)
def test_only_own_files_are_replaced(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("trace.json").write_text('{"schemaVersion": 1, "traceEvents": []}')
    Path("net.onnx").write_bytes(b"")
    words, option, below = COMMANDS[name]
    out = Path("out")
    file = out / below
    file.parent.mkdir(exist_ok=True)
    file.write_text('{"format": "mine"}')
    assert main([*words, option, str(out)]) == 2
    error = capsys.readouterr().err
    assert f"{file} exists and is not " in error
    assert f"give another file: {option} FILE" in error
    assert file.read_text() == '{"format": "mine"}'
    written(name, file)
    assert main([*words, option, str(out)]) != 0  # there is nothing to make it of
    assert "exists and is not" not in capsys.readouterr().err
