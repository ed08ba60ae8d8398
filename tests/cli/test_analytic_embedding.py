"""`cdmpp analytic embedding`."""

from __future__ import annotations

import json

import numpy as np
import pytest

from cdmpp.analytic.embedding.shapes import EmbeddingShape, load_preset
from cdmpp.cli.analytic.embedding import error_plots
from cdmpp.cli.main import main
from tests.paths import ROOT

PRESETS = ROOT / "configs" / "embedding"
CAMPAIGN = ROOT / "data" / "embedding-cpu"


def run(*words: str) -> int:
    return main(["analytic", "embedding", *words])


def test_presets_are_the_models_sizes():
    assert load_preset(PRESETS / "dlrm-default.yaml").shape() == EmbeddingShape(
        2048, 1_000_000, 8, 100, 64, 4
    )
    mlperf = load_preset(PRESETS / "mlperf.yaml")
    rows = sum(mlperf.table_rows) // 26
    assert mlperf.shape() == EmbeddingShape(2048, rows, 26, 1, 128, 2)
    assert mlperf.shape(batch=512).batch == 512


def test_predicts_the_published_number(capsys):
    preset = str(PRESETS / "dlrm-default.yaml")
    words = ("--preset", preset, "--device", "v100-reference", "--version", "resident")
    assert run("predict", *words, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["latency_s"] * 1e6 == pytest.approx(532.0648306551298, rel=4e-16)
    assert run("predict", *words) == 0
    assert "532.06 µs" in capsys.readouterr().out


def test_a_gpu_formula_without_measurements_has_no_interval(capsys):
    words = ("--preset", str(PRESETS / "dlrm-default.yaml"), "--device", "h100")
    assert run("predict", *words, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["low_s"] is None is value["high_s"]
    assert "the error of lru is unknown" in value["interval_source"]
    assert run("predict", *words) == 0
    text = capsys.readouterr().out
    assert "no interval: no measurements of these kernels on a GPU" in text
    assert "the launch of the kernel is not counted" in text  # a small one took 0.5 ns


def test_a_table_of_ones_own_makes_the_interval_of_a_gpu(tmp_path, capsys):
    path = tmp_path / "bench.csv"
    times = [400.0 + 10 * number for number in range(20)]  # predicted: 532 us
    path.write_text(
        "kernel_name,batch_size,num_embeddings,num_tables,bag_size,embedding_dim,rows_per_block,"
        "kernel_runtime\n"
        + "".join(f"batched_embedding,2048,1000000,8,100,64,4,{time}\n" for time in times)
    )
    words = ("--preset", str(PRESETS / "dlrm-default.yaml"), "--device", "v100-reference",
             "--version", "resident", "--measured", str(path))  # fmt: skip
    assert run("predict", *words, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["low_s"] == pytest.approx(400e-6)
    assert value["high_s"] == pytest.approx(590e-6)
    assert value["interval_source"] == "90 % of 20 kernels of bench.csv on v100-reference"
    assert run("predict", *words[:3], "h100", *words[4:], "--measured-on", "v100-reference") == 0
    text = capsys.readouterr().out
    assert "interval from: 90 % of 20 kernels of bench.csv on v100-reference; h100 is an" in text
    path.write_text("\n".join(path.read_text().splitlines()[:5]) + "\n")
    assert run("predict", *words) == 0
    assert "no interval: 4 kernels of bench.csv, expected" in capsys.readouterr().out


def test_missing_sizes_are_named(capsys):
    preset = str(PRESETS / "dlrm-default.yaml")
    for skew in ("-1", "nan"):
        assert run("predict", "--preset", preset, "--device", "t4", "--zipf", skew) == 2
        assert f"zipf exponent {skew}" in capsys.readouterr().err
    assert run("predict", "--batch", "8") == 2
    assert "--rows, --tables, --lookups, --width" in capsys.readouterr().err
    assert run("predict", "--preset", str(PRESETS / "mlperf.yaml"), "--version", "plain",
               "--zipf", "1") == 2  # fmt: skip
    assert "uniform access only" in capsys.readouterr().err


def test_gpu_table_is_evaluated_with_plots(tmp_path, capsys):
    path = tmp_path / "bench.csv"
    path.write_text(
        "kernel_name,batch_size,num_embeddings,num_tables,bag_size,embedding_dim,rows_per_block,"
        "kernel_runtime\n"
        "batched_embedding,2048,1000000,8,100,64,4,532.0648306551298\n"
        "batched_embedding,2048,1000,64,32,64,64,400\n"
    )
    words = ("--data", str(path), "--device", "v100-reference", "--plots", str(tmp_path / "plots"))
    assert run("evaluate", *words, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["lines"]["resident"]["forward"]["n"] == 2
    assert value["lines"]["resident"]["forward"]["mean"] == pytest.approx(
        (1 - 369.0257728531856 / 400) / 2, rel=1e-6
    )
    assert (tmp_path / "plots" / "histogram.svg").read_text().startswith("<svg")
    assert (tmp_path / "plots" / "predicted.svg").read_text().startswith("<svg")


@pytest.mark.slow
def test_measures_fits_and_predicts(tmp_path, capsys):
    folder = tmp_path / "campaign"
    folder.mkdir()
    # The shipped campaign, cut down: measuring is tested with the campaign itself.
    lines = (CAMPAIGN / "measurements.csv").read_text().splitlines()
    (folder / "measurements.csv").write_text("\n".join([lines[0], *lines[1::20]]) + "\n")
    (folder / "machine.json").write_text((CAMPAIGN / "machine.json").read_text())
    constants = tmp_path / "constants.json"
    assert run("fit", "--data", str(folder), "--out", str(constants), "--json") == 0
    assert "forward" in json.loads(capsys.readouterr().out)["cost_s"]
    shape = ("--batch", "512", "--rows", "100000", "--tables", "4", "--lookups", "32",
             "--width", "64")  # fmt: skip
    assert run("predict", *shape, "--constants", str(constants), "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["latency_s"] == pytest.approx(sum(value["parts_s"].values()))
    assert value["low_s"] < value["latency_s"] < value["high_s"]
    words = (*shape, "--constants", str(constants), "--pass", "backward-dense", "--json")
    assert run("predict", *words) == 0
    value = json.loads(capsys.readouterr().out)
    assert value["low_s"] is None is value["high_s"]
    assert "fewer than 19 measurements of backward-dense" in value["interval_source"]
    assert run("evaluate", "--data", str(folder), "--json") == 0
    lines_found = json.loads(capsys.readouterr().out)["lines"]
    assert lines_found["cpu"]["forward"]["gmae"] < lines_found["plain"]["forward"]["gmae"]


@pytest.mark.slow
def test_cpu_lookups_have_the_interval_of_the_validation(tmp_path, capsys):
    constants = tmp_path / "constants.json"
    assert run("fit", "--data", str(CAMPAIGN), "--out", str(constants), "--json") == 0
    capsys.readouterr()
    shape = ("--batch", "512", "--rows", "100000", "--tables", "4", "--lookups", "32",
             "--width", "64", "--constants", str(constants))  # fmt: skip
    assert run("predict", *shape, "--json") == 0
    value = json.loads(capsys.readouterr().out)
    assert value["low_s"] < value["latency_s"] < value["high_s"] < 3 * value["latency_s"]
    assert run("predict", *shape) == 0
    text = capsys.readouterr().out
    assert "interval from: 90 % of 235 lookups (forward) on AMD EPYC, table sizes held" in text
    assert text.splitlines()[0].startswith("1.77")
    assert " ms [" in text.splitlines()[0]
    old = json.loads(constants.read_text())
    del old["errors"]
    constants.write_text(json.dumps(old))
    assert run("predict", *shape) == 0
    assert "no interval: the constants have no validation; refit them" in capsys.readouterr().out


def test_a_campaign_without_its_machine_says_how_to_make_one(tmp_path, capsys):
    header = (CAMPAIGN / "measurements.csv").read_text().splitlines()[0]
    (tmp_path / "measurements.csv").write_text(header + "\n")
    assert run("fit", "--data", str(tmp_path), "--out", str(tmp_path / "c.json")) == 3
    assert "cdmpp analytic embedding measure" in capsys.readouterr().err


def test_an_option_of_the_last_release_ends_with_one_sentence(capsys):
    words = ("--preset", str(PRESETS / "dlrm-default.yaml"), "--device", "v100")
    with pytest.raises(SystemExit, match="2"):
        run("predict", *words, "--reproduce-defects")
    *_, line = capsys.readouterr().err.splitlines()
    assert line.endswith(
        "--reproduce-defects was removed: the formulas have no defects to choose from; leave it "
        "out; see: cdmpp analytic embedding predict --help"
    )


def test_lines_of_different_length_are_plotted_together() -> None:
    plots = error_plots({"a": (np.ones(3), np.ones(3) * 2), "b": (np.ones(2), np.ones(2))})
    assert sorted(plots) == ["histogram.svg", "predicted.svg"]
    assert all(text.startswith("<svg") for text in plots.values())
