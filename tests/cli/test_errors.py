"""Errors of the command line: one line, the right exit code, no traceback."""

from __future__ import annotations

import json
import os
import signal
import time

import pytest

from cdmpp.cli.main import main
from cdmpp.cli.shared.options import sizes_of
from cdmpp.errors import UsageError
from cdmpp.models.registry import MODEL_CLASSES
from tests.cli.conftest import QUICK


def fails(capsys, code, *arguments) -> str:
    assert main(list(arguments)) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    assert "Traceback" not in captured.err
    return captured.err


def test_device_without_data_says_what_to_do_next(capsys):
    text = fails(capsys, 3, "evaluate", "--device", "t4")
    for word in ("t4", "xeon-avx2-1c", "v100", "cdmpp dataset fetch t4", "--dataset DIR"):
        assert word in text


@pytest.mark.parametrize("command", ["train", "finetune --from pretrained"])
def test_an_unknown_device_is_refused_the_same_way(capsys, command):
    """Was exit 3, and how to get records of a device that does not exist."""
    said = fails(capsys, 4, *command.split(), "--device", "epyc-avx2-1d")
    assert "unknown device 'epyc-avx2-1d', did you mean 'epyc-avx2-1c'?" in said


@pytest.mark.parametrize(
    "words",
    [
        ["train"],
        ["evaluate"],
        ["predict", "examples/kernel.py"],
        ["compare", "--model", "Qwen/Qwen3-8B", "--prefill", "512"],
        ["roofline", "examples/kernel.py"],
    ],
)
def test_all_unknown_devices_are_named(capsys, words):
    """Was the first one, so that each took a run of its own."""
    said = fails(capsys, 4, *words, "--device", "v101,t4,h1000")
    assert "unknown devices " in said
    assert "'v101' (nearest: v100, " in said
    assert "'h1000' (nearest: " in said
    assert "'t4'" not in said


def test_missing_dataset(capsys, tmp_path):
    fails(capsys, 3, "train", "--dataset", str(tmp_path / "absent"), "--device", "t4")


def test_missing_and_damaged_models(capsys, trained, tmp_path):
    records = ["--records", str(tmp_path / "x.json")]
    assert "cdmpp train" in fails(capsys, 3, "predict", "--model", str(tmp_path), *records)
    (tmp_path / "model.json").write_text('{"format": 1')
    assert "damaged" in fails(capsys, 3, "predict", "--model", str(tmp_path), *records)
    (tmp_path / "model.json").write_text('{"format": 99}')
    assert "format 99" in fails(capsys, 3, "predict", "--model", str(tmp_path), *records)
    value = json.loads((trained / "model.json").read_text())
    value["device_vector_schema"] = 0
    (tmp_path / "model.json").write_text(json.dumps(value))
    assert "device vectors" in fails(capsys, 3, "predict", "--model", str(tmp_path), *records)
    value = json.loads((trained / "model.json").read_text())
    del value["state"]["options"]
    (tmp_path / "model.json").write_text(json.dumps(value))
    assert "options" in fails(capsys, 3, "predict", "--model", str(tmp_path), *records)
    (tmp_path / "model.json").write_text((trained / "model.json").read_text())
    assert "weights" in fails(capsys, 3, "predict", "--model", str(tmp_path), *records)


def test_model_of_another_feature_schema_is_refused(capsys, trained, dataset, cache, tmp_path):
    value = json.loads((trained / "model.json").read_text())
    value["state"]["feature_schema"]["leaf"] = 77
    (tmp_path / "model.json").write_text(json.dumps(value))
    (tmp_path / "model.safetensors").write_bytes((trained / "model.safetensors").read_bytes())
    arguments = ["--model", str(tmp_path), "--dataset", str(dataset), "--cache", str(cache), "-q"]
    assert "leaf v77" in fails(capsys, 3, "evaluate", *arguments, "--jobs", "1")


def test_missing_record_file(capsys, trained, tmp_path):
    arguments = ["predict", "--model", str(trained), "--records", str(tmp_path / "absent.json")]
    fails(capsys, 3, *arguments)


def test_unknown_option_names_the_nearest(capsys):
    text = fails(capsys, 2, "train", "--set", "transformer.loop.epoch=3")
    assert "transformer.loop.epochs" in text


def no_extraction(*arguments, **named):
    raise AssertionError("extracted before the options were looked at")


def test_unknown_model_names_the_nearest(capsys, dataset, cache, tmp_path, monkeypatch):
    """Was noticed after minutes of extracting."""
    monkeypatch.setattr("cdmpp.datasets.sources.extracted_folder", no_extraction)
    arguments = ["--dataset", str(dataset), "--cache", str(cache), "-q", "--jobs", "1"]
    out = ["--out", str(tmp_path / "run")]
    assert "gbdt" in fails(capsys, 2, "train", *arguments, *out, "--model", "gbtd")
    assert not (tmp_path / "run").exists()
    baselines = ["--set", "baselines=[gbtd]"]
    assert "gbdt" in fails(capsys, 2, "train", *arguments, *out, *baselines)


def test_train_help_names_every_kind_of_model(capsys):
    """Was 4 of 11."""
    with pytest.raises(SystemExit):
        main(["train", "--help"])
    said = capsys.readouterr().out
    for kind in MODEL_CLASSES:
        assert kind in said


def test_unwritable_run_folder(capsys, dataset, cache, tmp_path, monkeypatch):
    monkeypatch.setattr("cdmpp.datasets.sources.extracted_folder", no_extraction)
    (tmp_path / "file").write_text("")
    arguments = ["--dataset", str(dataset), "--cache", str(cache), "-q", "--jobs", "1"]
    out = ["--out", str(tmp_path / "file" / "run")]
    assert "cannot write" in fails(capsys, 3, "train", *arguments, *out, *QUICK)


def test_interruption_is_one_line(capsys, monkeypatch):
    def interrupted(args):
        raise KeyboardInterrupt

    monkeypatch.setattr("cdmpp.cli.train.command.run", interrupted)
    assert "run the same command again" in fails(capsys, 130, "train")


def test_a_file_that_fails_anywhere_is_one_line(capsys, monkeypatch, tmp_path):
    """Was a traceback where nobody had thought of it."""
    gone = tmp_path / "gone" / "log.jsonl"
    monkeypatch.setattr("cdmpp.cli.train.command.run", lambda args: gone.open("a"))
    assert f"{gone}: cannot be read or written (No such file" in fails(capsys, 3, "train")


def test_sigterm_ends_a_command_as_ctrl_c_does(capsys, monkeypatch):
    """Was an end without cleaning up: temporary files stayed."""
    cleaned = []

    def ended(args):
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        finally:
            cleaned.append(True)

    monkeypatch.setattr("cdmpp.cli.train.command.run", ended)
    assert "run the same command again" in fails(capsys, 128 + signal.SIGTERM, "train")
    assert cleaned == [True]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (
            "predict --network x.onnx --machine-code --no-machine-code",
            "--machine-code and --no-machine-code exclude each other: got both, expected one of "
            "them; leave one out",
        ),
        (
            "dataset stats here --dataset there",
            "two datasets: got here and --dataset there, expected one; leave one out",
        ),
        (
            "dataset audit here --dataset there",
            "two datasets: got here and --dataset there, expected one; leave one out",
        ),
        (
            "autotune --trials 3 report --out here",
            "autotune report trains nothing: got --trials, expected only --out, --storage, --study "
            "and --json; leave it out",
        ),
        *(
            (
                f"device add my-gpu --sweep {option} {value}",
                f"{option} can only be used with programs of TVM, got --sweep; leave it out",
            )
            for option, value in {
                "--from": "run", "--seed": "3", "--per-task": "5", "--cache": "here",
            }.items()
        ),
    ],
)  # fmt: skip
def test_options_without_effect_are_refused(capsys, words, said):
    assert main(words.split()) == 2
    assert capsys.readouterr().err == f"cdmpp: error: {said}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["predikt"], "COMMAND: got 'predikt', did you mean 'predict'?; see: cdmpp --help"),
        (
            ["predict", "x.py", "--dtype", "float61"],
            "--dtype: got 'float61', did you mean 'float16'?, expected one of float32, float16, "
            "bfloat16, amp-fp16, amp-bf16; see: cdmpp predict --help",
        ),
        (
            ["dataset", "extract", "--jobs", "two"],
            "--jobs: got 'two', expected a whole number; see: cdmpp dataset extract --help",
        ),
        (
            ["predict", "x.py", "--dtpye=float16"],
            "unknown argument '--dtpye=float16', did you mean '--dtype'?; see: cdmpp predict "
            "--help",
        ),
        (["predict", "--dtype"], "--dtype: expected one argument; see: cdmpp predict --help"),
        (
            ["device", "show", "t4", "--run", "r", "--device-spec", "d.yaml"],
            "--device-spec: not allowed with argument --run; see: cdmpp device show --help",
        ),
    ],
)
def test_usage_errors_are_one_sentence_with_code_2(capsys, words, said):
    """Was the whole usage, and argparse's words below."""
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert capsys.readouterr().err == f"cdmpp: error: {said}\n"


@pytest.mark.parametrize(
    ("texts", "said"),
    [
        (["n=4", "n=8"], "--set n=8: n is 4 too, expected one size"),
        (["n=" + "9" * 5000], "expected a size of a program such as n=4096"),
        (["n=-4"], "--set 'n=-4', expected a size"),
    ],
)
def test_sizes_that_contradict_or_are_none_are_refused(texts: list[str], said: str) -> None:
    """Of two sizes of a name, the last was taken; one of 5,000 digits was a traceback."""
    with pytest.raises(UsageError) as caught:
        sizes_of(texts)
    assert said in str(caught.value)
    assert len(str(caught.value)) < 200


def test_a_size_may_be_repeated() -> None:
    assert sizes_of(["n=4", "m=8", "n=4"]) == {"n": 4, "m": 8}
