"""`cdmpp.load(...).predict(...)`: every source and device, and the same answers as the commands."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

import cdmpp
from cdmpp.cli.main import main
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.errors import DataError, DeviceError, ReplayError, UsageError
from tests.paths import ROOT
from tests.tvm_helper.predict.written import BOARD, SCRIPT
from tests.tvm_helper.search.fixtures import DEVICE, matmul, train_into
from tests.tvm_helper.tasks.test_network_tasks import onnx_file
from tvm_helper.tasks.machine_code import _load_compiler

pytestmark = pytest.mark.tvm

OTHER = "xeon-avx2-2c"
#: A CPU with other instructions than those of which the packaged model reads the code.
ARM = "graviton3"


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_into(tmp_path_factory.mktemp("api") / "run")


@pytest.fixture(scope="module")
def model(run: Path) -> cdmpp.Model:
    return cdmpp.load(run)


@pytest.fixture(scope="module")
def packaged() -> cdmpp.Model:
    return cdmpp.load("pretrained")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("files")
    (folder / "kernel.py").write_text(SCRIPT)
    (folder / "board.yaml").write_text(BOARD)
    return folder


@pytest.fixture(scope="module")
def records() -> Path:
    return sorted((default_dataset_dir() / "measure_records" / DEVICE).iterdir())[0]


def printed(capsys: pytest.CaptureFixture[str], *words: object) -> list[dict[str, Any]]:
    assert main([*map(str, words), "--json"]) == 0
    rows: list[dict[str, Any]] = json.loads(capsys.readouterr().out)
    return rows


def test_a_script_in_three_lines(model):
    found = model.predict(SCRIPT, device=DEVICE)
    assert found.low_s < found.latency_s < found.high_s
    assert found.only.name == "plain"
    assert f"plain on {DEVICE}: " in str(found)


def test_programs_are_those_of_the_command(model, run, files, capsys):
    kernel, board = files / "kernel.py", files / "board.yaml"
    rows = printed(
        capsys, "predict", "--model", run, "--program", kernel, "--device", f"{DEVICE},{OTHER}",
        "--device-spec", board,
    )  # fmt: skip
    assert len(rows) == 3
    found = model.predict(str(kernel), device=[DEVICE, OTHER, str(board)])
    assert json.loads(json.dumps(found.to_json())) == rows
    assert [one.device for one in found] == [DEVICE, OTHER, "my-board"]
    specs = [cdmpp.devices.get(DEVICE), OTHER, cdmpp.devices.read(board)]
    assert model.predict(kernel, specs).to_json() == found.to_json()


def test_programs_of_all_forms_have_one_answer(model, files):
    seconds = model.predict(files / "kernel.py", DEVICE).latency_s
    assert model.predict(SCRIPT, DEVICE).latency_s == seconds
    function = matmul(64, depth=48)
    alone = model.predict(function, DEVICE)
    assert alone.only.detail.operator == "dense"
    both = model.predict([function, SCRIPT], DEVICE)
    assert [one.latency_s for one in both] == [alone.latency_s, seconds]


def test_explanations_are_those_of_the_command(model, run, files, capsys):
    kernel = files / "kernel.py"
    options = ("explain", "--model", run, "--program", kernel, "--device", DEVICE)
    rows = printed(capsys, *options)
    found = model.predict(kernel, DEVICE).explain()
    assert json.loads(json.dumps(found.row)) == rows[0]
    assert main(list(map(str, options))) == 0
    assert capsys.readouterr().out == f"{found}\n"
    assert [one.row for one in model.explain(kernel, DEVICE)] == [found.row]


def test_programs_are_compiled_by_default(packaged, files, capsys):
    kernel = files / "kernel.py"
    found = packaged.predict(kernel, DEVICE)
    assert found.only.is_compiled
    assert found.to_json() == packaged.predict(kernel, DEVICE, machine_code=True).to_json()
    fast = packaged.predict(kernel, DEVICE, machine_code=False)
    assert not fast.only.is_compiled
    assert fast.latency_s != found.latency_s
    options = ("--program", kernel, "--device", DEVICE)
    assert printed(capsys, "predict", *options) == json.loads(json.dumps(found.to_json()))
    assert printed(capsys, "predict", *options, "--no-machine-code") == json.loads(
        json.dumps(fast.to_json())
    )


def test_the_explained_latency_is_the_predicted_one(packaged, files, capsys):
    kernel = files / "kernel.py"
    for machine_code, option in ((None, ()), (False, ("--no-machine-code",))):
        found = packaged.predict(kernel, DEVICE, machine_code=machine_code)
        (row,) = printed(capsys, "explain", kernel, "--device", DEVICE, *option)
        assert json.loads(json.dumps(found.explain().row)) == row
        assert row["latency_s"] == found.latency_s
        assert row["is_compiled"] == (row["machine_code"] is not None) == (machine_code is None)


def test_kernels_of_an_explained_network_are_compiled_as_the_network_is(packaged, tmp_path):
    path = onnx_file(
        tmp_path / "net.onnx", lambda helper: [helper.make_node("Relu", ["x"], ["y"])], [4, 64]
    )
    found = packaged.predict(path, DEVICE)
    (kernel,) = found.explain().row["kernels"]
    assert kernel["explanation"]["is_compiled"]
    (kernel,) = found.explain(machine_code=False).row["kernels"]
    assert not kernel["explanation"]["is_compiled"]


def test_only_a_few_programs_are_compiled_by_default(packaged, files, monkeypatch, capsys):
    monkeypatch.setattr("cdmpp.api.model.MOST_COMPILED", 1)
    both = [files / "kernel.py", [SCRIPT]]
    found = packaged.predict(both, DEVICE)
    assert [one.is_compiled for one in found] == [False, False]
    (note,) = found.notes
    assert note.startswith("2 programs are predicted without machine code")
    assert "machine_code=True" in note
    assert found[0].explain().row["latency_s"] == found[0].latency_s
    assert all(one.is_compiled for one in packaged.predict(both, DEVICE, machine_code=True))
    assert packaged.predict(both, DEVICE, machine_code=False).notes == ()
    assert packaged.predict(both, ARM).notes == ()  # its code cannot be read anyway
    two = files / "two.py"
    two.write_text(f"{SCRIPT}\n{SCRIPT.replace('plain', 'other')}")
    (one, _) = packaged.explain(two, DEVICE)
    assert one.row["no_machine_code"] == note
    assert main(["predict", str(two), "--device", DEVICE]) == 0
    shown = capsys.readouterr()
    assert shown.err == f"cdmpp: {note}\n"
    assert "compiled" not in shown.out


def test_a_program_that_does_not_compile_is_predicted_without_its_code(
    packaged, files, monkeypatch, capsys
):
    def fails(*_):
        raise ReplayError("it does not compile for llvm (a reason; another)")

    kernel = files / "kernel.py"
    fast = packaged.predict(kernel, DEVICE, machine_code=False)
    compiled = packaged.predict(kernel, OTHER)
    monkeypatch.setattr("tvm_helper.tasks.machine_code.code_of", fails)
    monkeypatch.setattr("tvm_helper.predict.predictor.code_of", fails)
    found = packaged.predict(kernel, DEVICE)
    assert (found.latency_s, found.low_s, found.high_s) == (
        fast.latency_s, fast.low_s, fast.high_s
    )  # fmt: skip
    assert not found.only.is_compiled
    assert main(["predict", str(kernel), "--device", DEVICE]) == 0
    text = capsys.readouterr().out
    assert (
        "predicted without machine code: it does not compile for llvm (a reason, another)" in text
    )
    assert "plain is not scheduled" in text
    assert compiled.only.is_compiled
    with pytest.raises(DataError, match="it does not compile"):
        packaged.predict(kernel, DEVICE, machine_code=True)


@pytest.mark.parametrize(
    ("compiler", "limit_s", "why"),
    [
        (lambda *_: time.sleep(60), 0.2, "it takes longer than 0.2 s to compile"),
        (lambda *_: os.kill(os.getpid(), signal.SIGSEGV), 60.0, "its compiler was killed by SIG"),
    ],
)
def test_a_program_that_takes_too_long_to_compile_is_predicted_without_its_code(
    packaged, files, monkeypatch, compiler, limit_s, why
):
    """It had no limit: some programs took LLVM minutes. A crash ended the process."""
    fast = packaged.predict(files / "kernel.py", DEVICE, machine_code=False)
    _load_compiler()
    monkeypatch.setattr("tvm_helper.tasks.machine_code.code_of", compiler)
    monkeypatch.setattr("tvm_helper.predict.predictor._LIMIT_S", limit_s)
    found = packaged.predict(files / "kernel.py", DEVICE)
    assert (found.latency_s, found.only.is_compiled) == (fast.latency_s, False)
    assert f"predicted without machine code: {why}" in found.only.note


def test_an_explained_program_is_compiled_once(packaged, files, monkeypatch):
    """It was compiled for its prediction, and again to describe its machine code."""
    again = []
    monkeypatch.setattr("tvm_helper.predict.explain.code_of", lambda *_: again.append(1))
    (one,) = packaged.explain(files / "kernel.py", DEVICE)
    assert one.row["machine_code"]["text"]
    assert not again


def test_a_program_that_is_unrolled_too_far_is_only_compiled_when_asked(packaged, tmp_path):
    kernel = tmp_path / "unrolled.py"
    kernel.write_text(
        "from tvm.script import tirx as T\n\n\n"
        "@T.prim_func(s_tir=True)\n"
        'def scaled(a: T.Buffer((4, 9000), "float32"), b: T.Buffer((4, 9000), "float32")):\n'
        "    for i in range(4):\n"
        "        for j in T.unroll(9000):\n"
        '            with T.sblock("b"):\n'
        '                row, column = T.axis.remap("SS", [i, j])\n'
        "                b[row, column] = a[row, column] * T.float32(2)\n"
    )
    found = packaged.predict(kernel, DEVICE).only
    assert not found.is_compiled
    assert "make 9,000 copies of its stores" in found.note
    assert found.explain().row["latency_s"] == found.latency_s
    short = tmp_path / "short.py"
    short.write_text(kernel.read_text().replace("9000", "16"))
    assert packaged.predict(short, DEVICE).only.is_compiled


def test_the_text_says_which_programs_were_compiled(packaged, files, capsys):
    kernel = str(files / "kernel.py")
    assert not packaged.predict(kernel, ARM).only.is_compiled
    with pytest.raises(UsageError, match="--machine-code: the model reads the machine code of"):
        packaged.predict(kernel, ARM, machine_code=True)
    assert main(["predict", kernel, "--device", f"{DEVICE},{ARM}"]) == 0
    line = "1 of 2 was compiled and predicted with machine code, not: "
    assert f"\n{line}{ARM}\n" in capsys.readouterr().out


def test_records_are_those_of_the_command(model, run, records, capsys):
    rows = printed(capsys, "predict", "--model", run, "--records", records)
    found = model.predict(records)
    assert found.to_json() == rows
    assert all(one.measured_s is not None for one in found)
    with pytest.raises(UsageError, match="cannot be explained"):
        found[0].explain()
    with pytest.raises(UsageError, match="records cannot be explained"):
        model.explain(records)
    with pytest.raises(UsageError, match="cannot be combined"):
        model.records(records, OTHER, measured_on=DEVICE, machine_code=True)
    elsewhere = model.records(records, OTHER)
    assert elsewhere.to_json() == printed(
        capsys, "predict", "--model", run, "--records", records, "--device", OTHER
    )
    assert all(one.measured_s is None for one in elsewhere)


def test_records_and_samples_need_no_tvm(model, run, records):
    code = (
        "import sys\n"
        "sys.modules['tvm'] = sys.modules['tvm_ffi'] = None\n"
        "import cdmpp\n"
        f"print(cdmpp.load({str(run)!r}).predict({str(records)!r})[0].latency_s)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert float(done.stdout) == pytest.approx(model.predict(records)[0].latency_s)


def test_networks_are_those_of_the_command(model, run, tmp_path, capsys):
    path = onnx_file(
        tmp_path / "net.onnx", lambda helper: [helper.make_node("Relu", ["x"], ["y"])], [4, 64]
    )
    options = ("--model", run, "--device", DEVICE, "--no-machine-code")
    rows = printed(capsys, "predict", "--network", path, *options)
    found = model.predict(path, DEVICE, machine_code=False)
    assert found.to_json() == rows
    assert [one.way for one in found] == ["tvm-untuned"]
    one = found.only
    assert one.name == "net"
    assert one.explain().row["kernels"]
    assert model.explain(path, DEVICE, kernels=1)[0].row["latency_s"] == found.latency_s


def test_a_torch_module_needs_its_shapes(model):
    import torch

    module = torch.nn.Sequential(torch.nn.Linear(16, 8), torch.nn.ReLU())
    with pytest.raises(UsageError, match=r"without input shapes.*shapes="):
        model.predict(module, DEVICE)
    with pytest.raises(UsageError, match=r"without input shapes.*shapes="):
        model.explain(module, DEVICE)
    (explained,) = model.explain(module, DEVICE, shapes=[(16,)], kernels=1)
    assert explained.row["network"] == "Sequential"
    found = model.network(module, DEVICE, shapes=[(16,)], ways=["torch-eager"], batches=[1, 4])
    assert {one.batch for one in found} == {1, 4}
    assert {one.name for one in found} == {"Sequential"}


def test_samples_of_a_dataset(model, tiny_dataset, tmp_path):
    data = cdmpp.Dataset.read(tiny_dataset, cache_dir=tmp_path / "cache", jobs=1)
    assert data.devices == ("epyc-avx2-1c", "xeon-avx2-1c")
    found = model.predict(data)
    assert len(found) == len(data) == len(data.samples)
    assert found[3].measured_s == data.samples.latency_s[3]
    assert found.to_json()[0].keys() >= {"program_id", "latency_s", "measured_s"}
    again = model.predict(data.samples, device=[DEVICE, OTHER])
    assert len(again) == 2 * len(data)
    assert again[0].measured_s is None
    train, validation, test = data.split(seed=0, fractions=(0.5, 0.25, 0.25))
    assert len(train) + len(validation) + len(test) == len(data)


@pytest.mark.parametrize(
    ("source", "device", "error", "text"),
    [
        ("kernel.txt", DEVICE, DataError, r"kernel.txt: no such file"),
        (str(ROOT / "Makefile"), DEVICE, DataError, "unknown kind of file"),
        ("no-such.py", DEVICE, DataError, "no such file"),
        ("no-such.json", DEVICE, DataError, "no-such.json"),
        (".", DEVICE, UsageError, r"is a folder.*Dataset\.read"),
        (3, DEVICE, UsageError, "cannot predict int"),
        ("", DEVICE, UsageError, "cannot predict an empty text"),
        (SCRIPT, 3, UsageError, "device is 3, expected a label"),
        (SCRIPT, [DEVICE, None], UsageError, r"device is \['\S+', None\], expected a label"),
        (SCRIPT, b"t4", UsageError, "device is b't4', expected a label"),
        (SCRIPT, iter([DEVICE]), UsageError, "device is <list_iterator .*, expected a label"),
        (SCRIPT, "epyc-avx2-3c", DeviceError, "did you mean"),
        (
            SCRIPT,
            ["graviton2", replace(cdmpp.devices.get("graviton2"), core_count=3)],
            UsageError,
            "given twice",
        ),
        ("import os\nos.system('true')\n", DEVICE, DataError, "TVMScript"),
    ],
)
def test_trouble_is_one_sentence(model, source, device, error, text):
    with pytest.raises(error, match=text) as caught:
        model.predict(source, device)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batches": [0]}, r"batches is \[0\], expected whole numbers from 1 up"),
        ({"batches": "8"}, "batches is '8', expected whole numbers"),
        ({"shapes": 3}, "shapes is 3, expected one shape for each input"),
        ({"shapes": (16,)}, r"shapes is \(16,\), expected one shape"),
        ({"shapes": [("a",)]}, "expected one shape"),
        ({"shapes": [(-1,)]}, "expected one shape"),
        ({"ways": ["eager"]}, "unknown way 'eager'.*expected one of tvm-untuned, tvm-tuned"),
        ({"ways": "torch"}, "unknown way 'torch'"),
    ],
)
def test_inputs_of_a_network_are_checked(model, arguments, text):
    module = pytest.importorskip("torch").nn.Linear(16, 4)
    with pytest.raises(UsageError, match=text):
        model.network(module, DEVICE, **{"shapes": [(16,)]} | arguments)


@pytest.mark.parametrize("place", [None, 3, b"pretrained", ["pretrained"]])
def test_a_model_is_a_name_or_a_folder(place):
    with pytest.raises(UsageError, match="expected 'pretrained' or a run folder"):
        cdmpp.load(place)


def test_several_predictions_are_not_taken_for_one(model):
    found = model.predict(SCRIPT, [DEVICE, OTHER])
    with pytest.raises(UsageError, match=r"2 predictions .* expected one"):
        found.latency_s  # noqa: B018
    assert len(found[:1]) == 1
    assert "low_s" in repr(found[0])


def test_a_folder_without_a_model_is_found_out_at_once(tmp_path):
    with pytest.raises(DataError, match="trained model"):
        cdmpp.load(tmp_path)
    with pytest.raises(UsageError, match="no pretrained model 'nobody'"):
        cdmpp.load("pretrained:nobody")


def test_a_device_that_was_trained_on_keeps_its_description(model):
    from dataclasses import replace

    other = replace(cdmpp.devices.get(DEVICE), threads=64)
    with pytest.raises(DeviceError, match="the model was trained on"):
        model.predict(SCRIPT, other)
    assert model.predict(SCRIPT, replace(other, name="larger")).only.out_of_distribution
