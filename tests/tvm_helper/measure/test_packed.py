"""Packed campaigns are read, and a model is judged on them."""

from __future__ import annotations

import io
import json
import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("tvm", reason="apache-tvm is not installed")

from cdmpp.api.dataset import Dataset
from cdmpp.api.model import load
from cdmpp.cli.main import main
from cdmpp.predict.saved_model import task_digest
from tests.cli.conftest import json_of
from tests.paths import ROOT

pytestmark = pytest.mark.tvm

_NAME = "zen5-kernels"


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed campaign of 8 programs."""
    folder = tmp_path_factory.mktemp("packed") / "few-kernels"
    folder.mkdir()
    shutil.copyfile(ROOT / "data" / _NAME / "machine_code.parquet", folder / "machine_code.parquet")
    with (
        tarfile.open(ROOT / "data" / _NAME / "campaign.tar.xz") as source,
        tarfile.open(folder / "campaign.tar.xz", "w:xz") as archive,
    ):
        contents = {one.name: source.extractfile(one).read() for one in source}  # type: ignore[union-attr]
        entries = [json.loads(line) for line in contents["journal.jsonl"].splitlines()]
        few = [one for one in entries if one["kind"] == "measured"][:8]
        tasks = {one["task"] for one in few}
        drawn = [one for one in entries if one["kind"] == "drawn" and one["task"] in tasks]
        lines = "".join(f"{json.dumps(one)}\n" for one in [*drawn, *few])
        contents["journal.jsonl"] = lines.encode()
        kept = {"campaign.json", "journal.jsonl", *(f"tasks/{key}.json" for key in tasks)}
        for name in sorted(kept):
            content = contents[name]
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
    return folder


@pytest.mark.exhaustive
def test_a_packed_campaign_is_judged_with_its_machine_code(
    packed: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["evaluate", "--dataset", str(packed), "--cache", str(tmp_path)]
    assert main([*words, "--json"]) == 0
    values = json_of(capsys)
    assert isinstance(values, dict)
    tiers = values["tiers"]
    assert values["n"] + values["left_out_samples"] == 8
    assert tiers["fast"]["n"] == tiers["compiled"]["n"] == values["n"]
    samples = Dataset.read(packed, cache_dir=tmp_path).samples
    trained = load("pretrained").trained()
    digests = trained.card.training_tasks
    new = [
        task_digest(str(samples.programs.tasks[task])) not in digests for task in samples.task_id
    ]
    judged = samples.take(np.array(new))
    errors = np.abs(trained.estimate(judged).latency_s / judged.latency_s - 1)
    assert tiers["fast"]["mape"] == pytest.approx(errors.mean())
    assert tiers["compiled"]["mape"] != tiers["fast"]["mape"]
    (folder,) = tmp_path.glob("few-kernels-*")
    for path in folder.glob("machine_code*"):
        path.unlink()
    assert main(["evaluate", "--dataset", str(folder)]) == 0
    said = capsys.readouterr().out
    assert f"cdmpp measure --machine-code --out {folder}) compiles its programs" in said
    assert main(["evaluate", "--dataset", str(folder), "--machine-code", "--json"]) == 0
    again = json_of(capsys)
    assert isinstance(again, dict)
    assert again["tiers"]["compiled"]["mape"] == pytest.approx(tiers["compiled"]["mape"], rel=1e-3)


def test_a_damaged_archive_is_one_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "campaign.tar.xz").write_bytes(b"\xfd7zXZ\x00 no archive")
    words = ["evaluate", "--dataset", str(tmp_path), "--cache", str(tmp_path / "cache")]
    assert main(words) == 3
    said = capsys.readouterr().err
    assert "campaign.tar.xz is damaged" in said
    assert said.count("\n") == 1
    assert not list((tmp_path / "cache").glob("*/journal.jsonl"))


def test_a_campaign_that_was_stopped_says_what_writes_its_tables(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "campaign.json").write_text("{}")
    assert main(["evaluate", "--dataset", str(tmp_path)]) == 3
    assert f"cdmpp measure --tables-only --out {tmp_path}" in capsys.readouterr().err
