"""`cdmpp analytic embedding`."""

from __future__ import annotations

import json

import pytest

from cdmpp.analytic.embedding.shapes import EmbeddingShape, load_preset
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


def test_missing_sizes_are_named(capsys):
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
    assert run("evaluate", "--data", str(folder), "--json") == 0
    lines_found = json.loads(capsys.readouterr().out)["lines"]
    assert lines_found["cpu"]["forward"]["gmae"] < lines_found["plain"]["forward"]["gmae"]


def test_a_campaign_without_its_machine_says_how_to_make_one(tmp_path, capsys):
    header = (CAMPAIGN / "measurements.csv").read_text().splitlines()[0]
    (tmp_path / "measurements.csv").write_text(header + "\n")
    assert run("fit", "--data", str(tmp_path), "--out", str(tmp_path / "c.json")) == 3
    assert "cdmpp analytic embedding measure" in capsys.readouterr().err
