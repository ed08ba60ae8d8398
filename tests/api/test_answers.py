"""Answers as tables, frames and plots; the functions beside `load`; errors in Python's words."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
import torch

import cdmpp
from cdmpp.cli.main import main
from cdmpp.errors import CdmppError, UsageError, in_python
from cdmpp.predict.prediction import Prediction
from tests.paths import ROOT
from tests.report.run_folders import write_run

MODEL = "Qwen/Qwen3-32B"


@pytest.fixture(autouse=True)
def _no_window():
    import matplotlib.pyplot as plt

    mpl.use("agg")
    yield
    plt.close("all")


@pytest.fixture
def found() -> cdmpp.Predictions:
    rows = [
        Prediction("scale", "v100", 2e-6, 1e-6, 4e-6, measured_s=3e-6),
        Prediction("<b>bold</b>", "a100", 1e-3, 5e-4, 2e-3),
        Prediction("odd", "k80", reasons=("it has no thread bindings",)),
    ]
    return cdmpp.Predictions(rows, notes=["2 records & more are left out"])


@pytest.fixture(scope="module")
def compared() -> cdmpp.Comparison:
    found = cdmpp.compare(MODEL, ["h100", "l40s"], decode_at=2048, precision="fp8")
    assert isinstance(found, cdmpp.Comparison)
    return found


def test_a_table_of_several_kinds_of_networks_counts_items(compared):
    """Rows of a language model were below `inferences/s` beside an image network."""
    cell = compared[0]
    other = replace(cell, network="resnet", item="inference")
    assert "tokens/s" in compared.table()[0]
    mixed = cdmpp.Comparison([other, cell]).table()[0]
    assert {"items/s", "$/million items", "J/item, at most"} <= set(mixed)


def test_a_list_says_what_it_is(found):
    assert repr(found).startswith("<Predictions: scale on v100: 2.00 µs [1.00, 4.00]; ")
    assert repr(cdmpp.Predictions()) == "<Predictions: none>"
    assert isinstance(found[:2], cdmpp.Predictions)
    assert found[1:].notes == found.notes


def test_a_notebook_shows_a_table(found):
    html = found._repr_html_()
    assert "&lt;b&gt;bold&lt;/b&gt;" in html
    assert "<b>" not in html
    assert "2.00 µs [1.00, 4.00]" in html
    assert "it has no thread bindings" in html
    assert "2 records &amp; more" in html
    titles = found.table()[0]
    assert "batch" not in titles  # no row has one
    assert "measured" in titles


def test_a_frame_has_the_rows_of_the_command(found):
    frame = found.to_frame()
    assert list(frame["device"]) == ["v100", "a100", "k80"]
    assert frame["latency_s"].iloc[0] == 2e-6
    assert frame["latency_s"].isna().iloc[2]


def test_a_frame_without_pandas_is_one_sentence(found, monkeypatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(UsageError, match=r"to_frame\(\) needs pandas, .* or use to_json\(\)"):
        found.to_frame()


def test_a_plot_has_a_line_for_each_latency(found):
    axes = found.plot()
    names = [text.get_text() for text in axes.get_yticklabels()]
    assert names == ["scale, v100", "<b>bold</b>, a100"]
    assert axes.get_xscale() == "log"
    assert {text.get_text() for text in axes.get_legend().get_texts()} >= {"measured"}
    own = mpl.figure.Figure().subplots()
    assert found[:1].plot(own) is own
    with pytest.raises(UsageError, match="nothing to plot"):
        found[2:].plot()


def test_a_comparison_is_that_of_the_command(compared, capsys):
    words = ["compare", "--model", MODEL, "--precision", "fp8", "--decode-at", "2048"]
    assert main([*words, "--device", "h100,l40s", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(json.dumps(compared.to_json()))


def test_a_comparison_is_drawn(compared):
    assert [text.get_text() for text in compared.plot().get_yticklabels()] == ["h100", "l40s"]
    front = compared.plot_front()
    assert front.get_xlabel() == "US dollars per million items"
    assert {text.get_text() for text in front.texts} == {"h100", "l40s"}
    assert "h100" in compared._repr_html_()
    assert compared[:1].objective == compared.objective


def test_servers_under_load_are_a_curve():
    found = cdmpp.compare(
        MODEL,
        "b200",
        concurrency=np.array([1, 16]),
        input_tokens=512,
        output_tokens=64,
        precision="fp8",
        server_options={"max_num_seqs": 8},
    )
    assert isinstance(found, cdmpp.LoadComparison)
    assert found[1].reasons[0] == "at most 8 requests run at once: others wait for them"
    with pytest.raises(UsageError, match="server_options can only be used with concurrency"):
        cdmpp.compare(MODEL, "b200", decode_at=64, server_options={"max_num_seqs": 8})
    assert [cell.load.concurrency for cell in found] == [1, 16]
    axes = found.plot()
    assert [text.get_text() for text in axes.texts] == ["1", "16"]
    assert found.table()[0][:4] == ["model", "device", "GPUs", "users"]
    assert "16 users" in str(found[1])


def test_a_torch_module_is_predicted_and_compared():
    network = torch.nn.Sequential(torch.nn.Linear(64, 32), torch.nn.ReLU())
    model = cdmpp.load()
    with pytest.raises(UsageError, match=r"without input shapes; give them .* shapes=\["):
        model.predict(network, "v100")
    own = cdmpp.devices.get("v100")
    rows = cdmpp.compare(network, [own], shapes=[(64,)], batch=[1, 8], mode="infer")
    assert [(row.batch, row.device) for row in rows] == [(1, "v100"), (8, "v100")]
    assert all(0 < row.low_s < row.latency_s < row.high_s for row in rows)


def test_a_factory_is_named_as_on_the_command_line(tmp_path):
    file = tmp_path / "nets.py"
    file.write_text("import torch\n\n\ndef small():\n    return torch.nn.Linear(64, 32)\n")
    (row,) = cdmpp.compare(f"{file}:small", "v100", shapes=[(64,)], mode="infer")
    assert (row.network.split()[0], row.latency_s > 0) == ("small", True)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: cdmpp.compare(MODEL, "h100"), "nothing to compare for a language model"),
        (lambda: cdmpp.compare(3, "h100"), "cannot compare int"),
        (lambda: cdmpp.compare(MODEL, "h100", objective="speed"), "objective is 'speed', expected"),
        (lambda: cdmpp.compare(MODEL, "h100", backend="tgi"), "backend is 'tgi', expected one of"),
        (lambda: cdmpp.compare(MODEL, "h100", scale={"foo": 2}), "'foo'; expected NAME=FACTOR"),
        (lambda: cdmpp.compare(MODEL, "h100", batch=0), "batch is 0, expected whole numbers from"),
        (lambda: cdmpp.compare(MODEL, "h100", batch=True), "batch is True, expected whole numbers"),
        (
            lambda: cdmpp.compare(
                MODEL, "h100", concurrency=10**9, input_tokens=8, output_tokens=8
            ),
            "concurrency is more than 1048576",
        ),
        (cdmpp.LoadComparison([]).plot, "nothing to plot"),
        (lambda: cdmpp.compare(MODEL, "h100", mode="eval"), "mode is 'eval', expected one of"),
        (lambda: cdmpp.compare(MODEL, "h100", concurrency=4), "concurrency needs input_tokens"),
        (
            lambda: cdmpp.compare(MODEL, "h100", concurrency=4, decode_at=8),
            "decode_at can only be used without concurrency",
        ),
        (
            lambda: cdmpp.compare(MODEL, "h100", decode_at=8, measured="points.csv"),
            "measured can only be used with concurrency",
        ),
        (
            lambda: cdmpp.compare(
                torch.nn.ReLU(), "h100", concurrency=4, input_tokens=8, output_tokens=8
            ),
            "servers of language models: got ReLU",
        ),
        (lambda: cdmpp.finetune(), "finetune needs a device"),
        (lambda: cdmpp.runs("no-such-folder"), "expected a folder of run folders"),
    ],
)
def test_bad_questions_are_one_sentence(call, said):
    with pytest.raises(CdmppError, match=said) as error:
        call()
    assert "\n" not in str(error.value)


def test_runs_are_listed_and_compared(tmp_path: Path, capsys):
    write_run(tmp_path / "first", "roofline")
    write_run(tmp_path / "second", "roofline", seed=1)
    (tmp_path / "broken").mkdir()
    for name in ("metrics.json", "model.json"):
        (tmp_path / "broken" / name).write_text("{}", "utf-8")
    found = cdmpp.runs(tmp_path)
    assert [one["name"] for one in found] == ["broken", "first", "second"]
    assert "broken: " in found.notes[0]
    assert len(found.plot().patches) == 2
    assert found[1:].compared()["runs"][1]["seed"] == 1
    assert main(["runs", "--folder", str(tmp_path)]) == 0
    listed = capsys.readouterr().out
    assert "not complete" in listed
    assert f"{100 * found[1]['test']['roofline']['mape']:.1f} %" in listed
    assert main(["runs", "first", "second", "--folder", str(tmp_path)]) == 0
    assert "worst tasks" in capsys.readouterr().out
    assert main(["runs", "third", "--folder", str(tmp_path)]) == 2
    assert "no run 'third'" in capsys.readouterr().err


def test_a_fine_tuned_run_is_listed_with_its_error(tmp_path: Path, capsys):
    """Its line on the test part has another name than its kind of model."""
    write_run(tmp_path / "tuned", "roofline")
    path = tmp_path / "tuned" / "metrics.json"
    metrics = json.loads(path.read_text("utf-8"))
    metrics["test"]["fine-tuned"] = metrics["test"].pop("roofline") | {"mape": 0.25}
    path.write_text(json.dumps(metrics | {"model": "fine-tuned"}), "utf-8")
    assert main(["runs", "--folder", str(tmp_path)]) == 0
    assert "25.0 %" in capsys.readouterr().out


def test_options_are_named_as_arguments_in_python():
    said = in_python("give --device-spec FILE or --all, see `cdmpp predict --help`")
    assert said == "give device=FILE or all, see `cdmpp predict --help`"
    kept = "run cdmpp measure --tables-only --out runs; or set --jobs 2"
    assert in_python(kept) == "run cdmpp measure --tables-only --out runs; or set jobs=2"


def test_errors_speak_as_they_are_asked():
    code = (
        "import cdmpp\n"
        "from cdmpp.cli.main import main\n"
        "command = ['finetune', '--from', 'pretrained']\n"
        "for ask in (lambda: cdmpp.finetune(), lambda: main(command)):\n"
        "    try: ask()\n"
        "    except cdmpp.CdmppError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "give device=LABEL or network=NAME" in done.stdout
    assert "give --device LABEL or --network NAME" in done.stderr


def test_objects_say_what_they_are(tmp_path: Path):
    assert repr(cdmpp.load()).startswith("<Model 'pretrained' of programs, trained on a100, ")
    assert "tenset-cpu" in repr(cdmpp.Dataset(tmp_path, Path("data/tenset-cpu"), ("v100",)))


def test_help_lists_the_public_names():
    import pydoc

    text = pydoc.plain(pydoc.render_doc(cdmpp))
    for name in ("compare", "finetune", "load", "measure", "runs", "search", "train"):
        assert f"\n    {name}(" in text
