"""`cdmpp train --device LABEL` of a device that nobody measured, from first to last line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from cdmpp.datasets import find
from tests.cli.conftest import DEVICES, QUICK

DEVICE = "platinum-8124m"


@pytest.fixture(scope="module")
def shipped_is_small(dataset):
    """The small dataset as all that is shipped."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(find, "SHIPPED", (dataset.name,))
        patch.setattr(find, "shipped_places", lambda path: [dataset])
        yield


@pytest.fixture(scope="module")
def arguments(shipped_is_small, cache, tmp_path_factory) -> list[str]:
    run = tmp_path_factory.mktemp("unmeasured") / "run"
    return ["train", "--device", DEVICE, "--cache", str(cache), "--jobs", "1", "--out", str(run),
            *QUICK, "--model", "gbdt", "--set", "baselines=[roofline]"]  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.training
def test_it_trains_on_its_kind_says_so_first_and_what_to_do_last(arguments, capsys):
    run = Path(arguments[arguments.index("--out") + 1])
    assert main(arguments) == 0
    captured = capsys.readouterr()
    lines = captured.out.splitlines()
    assert lines[0] == (
        f"no measurements of {DEVICE} found: the model is trained on {DEVICES[1]} and "
        f"{DEVICES[0]} and uses only the description of {DEVICE}"
    )
    assert lines[-1].startswith("next    ")
    assert f"cdmpp dataset fetch {DEVICE} downloads measurements" in lines[-1]
    tables = [f"{name}, left out" for name in DEVICES]
    assert {"mean of 2 devices, each left out", *tables} <= set(lines)
    # Errors on devices that were trained on are in the page only, under their own name.
    assert not set(DEVICES) & set(lines)
    assert f"what to expect on {DEVICE}: MAPE" in captured.out
    assert "training 2 of 3 (without xeon-avx2-1c, about" in captured.err
    page = (run / "report.html").read_text()
    assert f"It has no measurement of {DEVICE}" in page
    assert f"this is not the error on {DEVICE}" in page
    metrics = json.loads((run / "metrics.json").read_text())
    assert metrics["unmeasured"]["devices"] == [DEVICE]


@pytest.mark.training
def test_once_more_is_quick_and_one_json_value(arguments, capsys):
    assert main([*arguments, "--json"]) == 0
    captured = capsys.readouterr()
    value = json.loads(captured.out)
    assert set(value["unmeasured"]["left_out"]) == set(DEVICES)
    assert captured.err.startswith(f"no measurements of {DEVICE} found")


@pytest.mark.training
def test_predictions_of_it_have_the_intervals_of_devices_left_out(arguments, dataset, capsys):
    run = arguments[arguments.index("--out") + 1]
    if not Path(run, "model.json").is_file():  # where this test runs alone
        assert main(arguments) == 0
        capsys.readouterr()
    records = sorted((dataset / "measure_records" / DEVICES[0]).iterdir())[0]
    words = ["predict", "--model", run, "--records", str(records), "--device", DEVICE]
    assert main([*words, "--network-info", str(dataset / "network_info"), "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert {one["device"] for one in found} == {DEVICE}
    assert all(one["out_of_distribution"] for one in found)


@pytest.mark.parametrize(
    ("labels", "code", "said"),
    [
        ("t44", 4, "did you mean 't4'?"),
        (f"{DEVICE},{DEVICES[0]}", 2, "were all measured, or all not"),
        ("hl-100", 3, "none of another device of kind accelerator"),
    ],
)
def test_what_it_cannot_do_is_one_sentence(shipped_is_small, labels, code, said, capsys):
    assert main(["train", "--device", labels]) == code
    captured = capsys.readouterr()
    assert captured.out == ""
    assert said in captured.err
    assert captured.err.count("\n") == 1
