"""kill -9 in the middle of a training: it resumes and ends with the same bytes."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdmpp.errors import DataError, UsageError
from cdmpp.models.loop.checkpoint import latest_checkpoint
from cdmpp.models.transformer import TransformerCostModel
from cdmpp.testing.synthetic import make_samples
from tests.models.loop.resume_child import OPTIONS
from tests.models.loop.resume_child import main as train_to_the_end
from tests.paths import ROOT

pytestmark = pytest.mark.training

REPOSITORY = ROOT


@pytest.fixture(scope="module")
def reference(tmp_path_factory) -> Path:
    """A run that nothing interrupted."""
    folder = tmp_path_factory.mktemp("reference")
    train_to_the_end(folder)
    return folder


def start(run_dir: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, str(Path(__file__).with_name("resume_child.py")), str(run_dir)],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
    )


def test_killed_training_resumes_bit_exact(reference, tmp_path):
    killed = tmp_path / "killed"
    child = start(killed)
    checkpoints = killed / "checkpoints"
    deadline = time.monotonic() + 60
    while latest_checkpoint(checkpoints) is None and child.poll() is None:
        assert time.monotonic() < deadline, "no checkpoint appeared"
        time.sleep(0.002)
    os.kill(child.pid, signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL, "the training ended before it could be killed"
    stopped_at = latest_checkpoint(checkpoints)
    assert stopped_at is not None
    assert not json.loads((stopped_at / "state.json").read_text())["finished"]

    assert start(killed).wait() == 0
    name = "model.safetensors"
    assert (killed / name).read_bytes() == (reference / name).read_bytes()
    histories = [
        [
            {key: entry[key] for key in ("epoch", "step", "training_loss", "validation_loss")}
            for entry in map(json.loads, (folder / "log.jsonl").read_text().splitlines())
        ]
        for folder in (killed, reference)
    ]
    assert histories[0] == histories[1]
    assert len(histories[0]) == 5


def test_checkpoints_in_the_middle_of_an_epoch_resume_bit_exact(reference, tmp_path):
    """Stops by an exception after every few steps, so that every kind of checkpoint is resumed
    from.
    """

    class StoppedError(Exception):
        pass

    from cdmpp.testing.synthetic import split_by_task

    train, validation, _ = split_by_task(make_samples(10, 6))

    def stop(progress):
        if progress.step % 4 == 0:
            raise StoppedError

    attempts = 0
    folder = tmp_path / "stopped"
    folder.mkdir()
    while True:
        attempts += 1
        model = TransformerCostModel(OPTIONS)
        try:
            # Every second attempt runs on, as steps of the last checkpoint onwards are done again.
            callback = stop if attempts < 6 else None
            model.fit(train, validation, seed=5, run_dir=folder, on_progress=callback)
            break
        except StoppedError:
            continue
    model.save(folder)
    assert attempts == 6
    name = "model.safetensors"
    assert (folder / name).read_bytes() == (reference / name).read_bytes()


def test_checkpoints_of_another_configuration_are_refused(reference):
    samples = make_samples(4, 4)
    with pytest.raises(UsageError, match="another configuration, seed or data set"):
        TransformerCostModel(OPTIONS).fit(samples, samples, seed=5, run_dir=reference)


def test_damaged_checkpoint_is_one_clear_error(reference, tmp_path):
    run = shutil.copytree(reference, tmp_path / "run")
    checkpoint = latest_checkpoint(run / "checkpoints")
    assert checkpoint is not None
    weights = checkpoint / "state.safetensors"
    weights.write_bytes(weights.read_bytes()[:100])
    with pytest.raises(DataError, match="to train from the start"):
        train_to_the_end(run)


def test_unwritable_run_folder_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    samples = make_samples(4, 4)
    with pytest.raises(DataError, match="cannot write"):
        TransformerCostModel(OPTIONS).fit(
            samples, samples, seed=0, run_dir=tmp_path / "file" / "run"
        )
