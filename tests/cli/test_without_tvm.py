"""Commands where TVM is not installed: records, training, serving and comparing work whole."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.request
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import pytest
import torch

from tests.cli.conftest import DEVICES, QUICK
from tests.paths import ROOT

#: Code, output and errors of a command.
Done = tuple[int, str, str]
_HIDING = Path(__file__).parent / "without_tvm"
_COMMANDS = """
import contextlib, io, json, sys
from cdmpp.cli.main import main
for arguments in json.loads(sys.argv[1]):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main(arguments)
    print(json.dumps([code, out.getvalue(), err.getvalue()]), flush=True)
"""
_SCRIPT = """@T.prim_func(s_tir=True)
def scale(A: T.Buffer((64,), "float32"), B: T.Buffer((64,), "float32")):
    for i in T.parallel(64):
        with T.sblock("scale"):
            vi = T.axis.spatial(64, i)
            B[vi] = A[vi] * T.float32(2)
"""
_TRANSFORMER = "layers=2,width=512,heads=8,kv_heads=8,ffn=2048,vocab=32000,dtype=bf16"


def _environment(*hidden: str) -> dict[str, str]:
    path = os.pathsep.join([str(_HIDING), str(ROOT)])
    return {**os.environ, "PYTHONPATH": path, "CDMPP_TEST_HIDE": " ".join(hidden)}


def _run(commands: Sequence[Sequence[str]], *hidden: str) -> list[Done]:
    """Returns code, output and errors of commands that run one after the other in one process."""
    done = subprocess.run(
        [sys.executable, "-c", _COMMANDS, json.dumps(commands)],
        cwd=ROOT, env=_environment(*hidden), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return [tuple(json.loads(line)) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def records(dataset: Path) -> Path:
    return sorted((dataset / "measure_records" / DEVICES[0]).iterdir())[0]


@pytest.fixture(scope="module")
def without(records, tmp_path_factory) -> dict[str, Done]:
    """What commands said in one process without TVM."""
    folder = tmp_path_factory.mktemp("without")
    (folder / "nets.py").write_text("from torch import nn\n\n\ndef net():\n    return nn.ReLU()\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        network = torch.export.export(torch.nn.ReLU().eval(), (torch.zeros(2, 64),))
        torch.export.save(network, folder / "net.pt2")
    program = ["--program", str(ROOT / "examples" / "kernel.py"), "--device", "v100"]
    factory = ["predict", "--torch", f"{folder / 'nets.py'}:net", "--input", "64", "--json"]
    commands = {
        "program": ["predict", *program],
        "machine code": ["predict", "--records", str(records), "--machine-code"],
        "explain": ["explain", *program],
        "records": ["predict", "--records", str(records), "--json"],
        "eager": [*factory, "--device", "v100", "--way", "torch-eager"],
        "factory": [*factory, "-q"],
        "file": ["predict", "--network", str(folder / "net.pt2"), "--json", "-q"],
    }  # fmt: skip
    return _by_name(commands)


def _by_name(commands: Mapping[str, Sequence[str]]) -> dict[str, Done]:
    return dict(zip(commands, _run(list(commands.values())), strict=True))


@pytest.mark.training
@pytest.mark.exhaustive
def test_train_evaluate_finetune_and_predict(dataset, records, tmp_path):
    data = ["--dataset", str(dataset), "--cache", str(tmp_path / "cache"), "--jobs", "1"]
    run, tuned = tmp_path / "run", tmp_path / "tuned"
    tuning = ["--set", "finetune.steps=6", "--set", "finetune.validate_every=3"]
    found = _by_name({
        "train": ["train", *data, *QUICK, "--device", DEVICES[0], "--set", "baselines=[constant]",
                  "--out", str(run), "--json"],
        "evaluate": ["evaluate", "--model", str(run), *data, "--device", DEVICES[0], "--json"],
        "finetune": ["finetune", "--from", str(run), "--device", DEVICES[1], "--budget", "4tasks",
                     *data, *tuning, "--set", "finetune.folds=2", "--out", str(tuned), "--json"],
        "predict": ["predict", "--records", str(records), "--model", str(tuned), "--json"],
        "measured on": ["predict", "--records", str(records), "--device", DEVICES[1],
                        "--measured-on", DEVICES[0], "--json"],
    })  # fmt: skip
    assert [code for code, _, _ in found.values()] == [0] * len(found), found
    assert (tuned / "report.html").is_file()
    evaluated, predicted = (json.loads(found[name][1]) for name in ("evaluate", "predict"))
    assert evaluated["overlap_with_training"] > 0
    assert all(row["latency_s"] > 0 and row["device"] == DEVICES[0] for row in predicted)


@pytest.mark.exhaustive
def test_records_and_comparisons_need_nothing_of_tvm_helper(records):
    found = _run(
        [
            ["predict", "--records", str(records)],
            ["predict", "--records", str(records), "--device", "v100", "--json"],
            ["compare", "--transformer", _TRANSFORMER, "--prefill", "128", "--device",
             "h100,a100", "--json"],
        ],
        "tvm_helper",
    )  # fmt: skip
    assert [code for code, _, _ in found] == [0, 3, 0], found
    assert "predicted" in found[0][1]
    assert "no thread bindings, v100 is a GPU" in found[1][2]
    assert {row["device"] for row in json.loads(found[2][1])} == {"h100", "a100-40gb"}


@pytest.mark.parametrize("command", ["program", "machine code", "explain"])
def test_what_needs_tvm_says_so_in_one_sentence(without, command):
    code, out, err = without[command]
    assert code == 2
    assert out == ""
    assert err.count("\n") == 1
    assert "Cannot use TVM: got apache-tvm not installed" in err


def test_torch_runs_a_network_without_tvm(without):
    code, out, err = without["eager"]
    assert code == 0, err
    assert {row["way"] for row in json.loads(out)} == {"torch-eager"}


@pytest.mark.parametrize("form", ["factory", "file"])
def test_torch_is_answered_where_tvm_is_asked_too(without, form):
    code, out, err = without[form]
    assert code == 0, err
    rows = {(row["way"], row["mode"]): row for row in json.loads(out)}
    assert "Cannot use TVM" in rows["tvm-untuned", "infer"]["reasons"][0]
    assert rows["torch-eager", "infer"]["latency_s"] > 0


@pytest.fixture(scope="module")
def server():
    command = [sys.executable, "-m", "cdmpp.cli.main", "serve", "--port", "0", "--json", "-q"]
    with subprocess.Popen(
        command, cwd=ROOT, env=_environment("tvm_helper"), stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["url"]
        process.terminate()


def _answer(url: str, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
    headers = {"Content-Type": "application/json"}
    request = urllib.request.Request(url, json.dumps(body).encode(), headers)
    try:
        with urllib.request.urlopen(request, timeout=120) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


@pytest.mark.exhaustive
def test_a_server_reads_records(server, records, without):
    programs = [{"records": records.read_text().splitlines()}]
    body = {"programs": programs, "devices": [DEVICES[0]]}
    status, answer = _answer(f"{server}/v1/predict", body)
    assert status == 200, answer
    here = {row["program_id"]: row["latency_s"] for row in json.loads(without["records"][1])}
    there = {row["program_id"]: row["latency_s"] for row in answer["predictions"]}
    assert there == pytest.approx(here, rel=1e-5)


@pytest.mark.exhaustive
@pytest.mark.parametrize("route", ["predict", "explain", "rank"])
def test_a_server_says_that_programs_need_tvm(server, route):
    body = {"programs": [{"tvmscript": _SCRIPT}]}
    body |= {"device": DEVICES[0]} if route == "rank" else {"devices": [DEVICES[0]]}
    status, answer = _answer(f"{server}/v1/{route}", body)
    assert status == 503
    assert "runs without TVM" in answer["error"]["text"]
