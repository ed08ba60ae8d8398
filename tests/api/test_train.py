"""`cdmpp.train`: the same run folder as `cdmpp train` leaves, from the same options."""

from __future__ import annotations

import json

import pytest

import cdmpp
from cdmpp.cli.main import main
from cdmpp.errors import UsageError

pytestmark = pytest.mark.training

SETTINGS = {
    "baselines": ["constant"], "fractions": [0.5, 0.25, 0.25], "gbdt": {"trees": 10, "threads": 1},
}  # fmt: skip


@pytest.mark.exhaustive
def test_a_run_is_that_of_the_command(tiny_dataset, tmp_path, capsys):
    cache, run = tmp_path / "cache", tmp_path / "run"
    model = cdmpp.train(
        tiny_dataset, device="epyc-avx2-1c", model="gbdt", out=run, settings=SETTINGS,
        cache_dir=cache, jobs=1,
    )  # fmt: skip
    assert model.devices == ("epyc-avx2-1c",)
    assert (run / "report.html").is_file()
    assert f"cdmpp train --config {run}/config.yaml" in (run / "report.html").read_text()
    again = tmp_path / "again"
    words = ["train", "--config", str(run / "config.yaml"), "--out", str(again), "--json", "-q"]
    assert main([*words, "--cache", str(cache), "--jobs", "1"]) == 0
    capsys.readouterr()
    names = ("config.yaml", "model.json")
    assert all((run / name).read_bytes() == (again / name).read_bytes() for name in names)
    metrics = [json.loads((one / "metrics.json").read_text()) for one in (run, again)]
    assert metrics[0]["test"] == metrics[1]["test"]
    assert cdmpp.load(again).trained().card == model.card


def test_a_dataset_is_read_once_and_settings_are_checked(tiny_dataset, tmp_path, monkeypatch):
    data = cdmpp.Dataset.read(tiny_dataset, cache_dir=tmp_path / "cache", jobs=1)
    monkeypatch.chdir(tmp_path / "cache")  # where nothing is, or would be, extracted
    monkeypatch.setattr(cdmpp.Dataset, "read", None)
    both = cdmpp.train(data, model="constant", out=tmp_path / "both", settings=SETTINGS)
    assert both.devices == data.devices
    model = cdmpp.train(
        data, device=data.devices[1], model="constant", out=tmp_path / "run", settings=SETTINGS
    )
    assert model.devices == data.devices[1:]
    assert model.predict(data)[0].latency_s > 0
    with pytest.raises(UsageError, match=r"unknown setting gbdt\.tree, did you mean 'gbdt.trees'"):
        cdmpp.train(data, out=tmp_path / "other", settings={"gbdt": {"tree": 3}})
    for changes in ({"seed": 5}, {"model": "gbdt"}, {"split": "network"}):
        ((name, value),) = changes.items()
        with pytest.raises(UsageError, match=f"expected {name}={value!r} beside settings"):
            cdmpp.train(data, out=tmp_path / "other", settings=changes)
    with pytest.raises(UsageError, match="settings has budget 3, but the argument budget is 10"):
        cdmpp.finetune(device="t4", settings={"budget": 3})
    with pytest.raises(UsageError, match="did you mean 'gbdt'"):
        cdmpp.train(data, model="gbtd", out=tmp_path / "other")


@pytest.mark.exhaustive
def test_a_tuning_is_that_of_the_command(tiny_dataset, tmp_path, capsys):
    cache = tmp_path / "cache"
    small = {"network": {"hidden": 16, "layers": 1}, "loop": {"epochs": 1}}
    start = cdmpp.train(
        tiny_dataset, device="epyc-avx2-1c", out=tmp_path / "start", from_nothing=True,
        settings={**SETTINGS, "transformer": small}, cache_dir=cache, jobs=1,
    )  # fmt: skip
    quick = {"finetune": {"steps": 2, "validate_every": 1, "folds": 2}}
    run, again = tmp_path / "tuned", tmp_path / "again"
    tuned = cdmpp.finetune(
        start, "xeon-avx2-1c", dataset=tiny_dataset, budget=3, out=run, settings=quick,
        cache_dir=cache, jobs=1,
    )  # fmt: skip
    assert "xeon-avx2-1c" in tuned.devices
    words = ["finetune", "--config", str(run / "config.yaml"), "--out", str(again), "--json", "-q"]
    assert main([*words, "--cache", str(cache), "--jobs", "1"]) == 0
    metrics = [json.loads((one / "metrics.json").read_text()) for one in (run, again)]
    assert metrics[0]["test"] == metrics[1]["test"]


def test_a_device_that_is_not_registered_is_described_beside_its_records(
    tiny_dataset, tmp_path, caplog
):
    records = tiny_dataset / "measure_records"
    (records / "epyc-avx2-1c").rename(records / "my-board")
    data = cdmpp.Dataset.read(tiny_dataset, "my-board", cache_dir=tmp_path / "cache", jobs=1)
    assert data.samples.devices[0].core_count is None
    assert caplog.messages == [
        "device 'my-board' is not in the registry, so its hardware values are unknown; describe it "
        f"in a file of {tiny_dataset / 'devices'}, like those of cdmpp/devices"
    ]
    caplog.clear()
    (tiny_dataset / "devices").mkdir()
    (tiny_dataset / "devices" / "mine.yaml").write_text(
        "common: {kind: cpu}\ndevices: {my-board: {core_count: {value: 4, source: data sheet}}}\n"
    )
    data = cdmpp.Dataset.read(tiny_dataset, "my-board", cache_dir=tmp_path / "cache", jobs=1)
    assert data.samples.devices[0].core_count == 4
    assert not caplog.records


def test_skipped_lines_are_reported_with_the_samples(tiny_dataset, tmp_path, caplog):
    data = cdmpp.Dataset.read(tiny_dataset, cache_dir=tmp_path / "cache", jobs=1)
    assert len(data) == 36
    assert not caplog.records
    first = next((tiny_dataset / "measure_records" / "epyc-avx2-1c").iterdir())
    first.write_text(first.read_text()[:-200])
    (first.parent / "empty.json").write_text("")
    data = cdmpp.Dataset.read(tiny_dataset, cache_dir=tmp_path / "again", jobs=1)
    assert len(data) == 35
    (warning,) = caplog.messages
    assert warning == (
        f"lines or files of {tiny_dataset} that could not be read and are left out: 2; list them: "
        f"cdmpp dataset stats {tiny_dataset}"
    )
