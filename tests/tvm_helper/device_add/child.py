"""Adds a device with a small model without running programs; also runs as a process."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.samples import Samples
from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.devices.spec import DeviceSpec
from cdmpp.machine import versions
from cdmpp.models.ensemble import EnsembleCostModel
from cdmpp.models.nets.options import LoopOptions, NetOptions
from cdmpp.models.options import EnsembleOptions, GbdtOptions, SegmentMlpOptions, TransformerOptions
from cdmpp.predict.machine_code.model import CodeModel, CodeRows
from cdmpp.predict.saved_model import ModelCard, task_digests
from cdmpp.programs.machine_code.columns import MACHINE_CODE_NAMES
from cdmpp.training.finetune import adapted_code
from cdmpp.training.run import new_model
from cdmpp.training.run_folder import save_trained
from tests.devices.machines import AMD, machine
from tests.tvm_helper.measure.campaigns import FAKE_WORKER, RECORDED
from tvm_helper.device_add import fit as device_add_fit
from tvm_helper.device_add.benchmarks import Benchmarks
from tvm_helper.device_add.options import DeviceAddOptions
from tvm_helper.device_add.run import Site, add_device
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.measure.sources import campaign_tasks

PEAK, BANDWIDTH = 5e10, 1e10
_TASKS, _KNOWN = 14, 5
_LOOP = LoopOptions(epochs=2, programs_per_batch=16)
_SMALL = TransformerOptions(
    network=NetOptions(hidden=16, layers=1, heads=2, feed_forward=16, head_hidden=16),
    loop=_LOOP,
)
_TREES = GbdtOptions(trees=5, depth=2, threads=1, least_mape_factor=False)


def make_setting(place: Path) -> Path:
    """Makes `tenset` (the first tasks of the shipped dataset), `extracted`, `model` and `root`."""
    from cdmpp.programs.featurise import featurise_records

    shipped = default_dataset_dir().resolve()
    records = place / "tenset" / "measure_records" / RECORDED
    records.mkdir(parents=True)
    for path in sorted((shipped / "measure_records" / RECORDED).iterdir())[:_TASKS]:
        (records / path.name).symlink_to(path)
    (place / "tenset" / "network_info").symlink_to(shipped / "network_info")
    extract(
        TensetRecords(place / "tenset", [RECORDED], featurise_records), place / "extracted", jobs=1
    )
    samples = load_samples(place / "extracted")
    tasks = np.unique(samples.task_id)
    train = samples.take(np.isin(samples.task_id, tasks[:_KNOWN]))
    held_out = samples.take(np.isin(samples.task_id, tasks[_KNOWN - 1 : _KNOWN]))
    options = EnsembleOptions(
        _SMALL, SegmentMlpOptions(hidden=8, least_mape_factor=False, loop=_LOOP), _TREES, 1
    )
    model = EnsembleCostModel(options)
    model.fit(train, held_out, seed=0)
    card = ModelCard(
        model.kind, dict(samples.programs.feature_schema), samples.programs.data_hash,
        {"kind": "task"}, samples.devices, task_digests(train), versions(),
    )  # fmt: skip
    (place / "model").mkdir()
    save_trained(model, place / "model", card, train=train, validation=held_out)
    _code_model(samples).save(place / "model")
    machine(place / "root", AMD, cpus=2)
    return place


@patch("cdmpp.predict.machine_code.net._EPOCHS", 3)
def _code_model(samples: Samples) -> CodeModel:
    """Returns a model trained on invented machine code."""
    shape = len(samples), len(MACHINE_CODE_NAMES)
    code = np.random.default_rng(0).random(shape).astype(np.float32)
    rows = CodeRows.of(samples, code, samples.latency_s)
    part = np.arange(len(samples)) % 3
    return CodeModel.fit(
        (rows.take(part == 0), rows.take(part == 1), rows.take(part == 2)),
        targets={RECORDED: '{"kind": "llvm", "mcpu": "core-avx2"}'},
        feature_schema=dict(samples.programs.feature_schema), seed=0,
    )  # fmt: skip


def options(setting: Path) -> DeviceAddOptions:
    return DeviceAddOptions(
        "my-box", minutes=5.0, threads=2, dataset=str(setting / "tenset"),
        from_run=str(setting / "model"), per_task=4, target='{"kind": "llvm", "mcpu": "core-avx2"}',
    )  # fmt: skip


def add(
    setting: Path, folder: Path, patch: Callable[[Any, str, Any], None], *, peak: float = PEAK
) -> tuple[Any, dict[str, Any]]:
    """Adds the device; `patch(object, name, value)` makes the fits small."""
    return add_device(options(setting), lambda: load_samples(setting / "extracted"), folder,
                      site=small_site(setting, patch, peak=peak))  # fmt: skip


def small_site(
    setting: Path, patch: Callable[[Any, str, Any], None], *, peak: float = PEAK
) -> Site:
    """Returns a machine that runs no programs, and makes the fits small (see `add`)."""

    def small_model(kind: str, untrained: Any) -> Any:
        if kind == "transformer":
            return new_model(kind, SimpleNamespace(transformer=_SMALL))  # type: ignore[arg-type]
        return new_model(kind, SimpleNamespace(gbdt=_TREES))  # type: ignore[arg-type]

    patch(device_add_fit, "new_model", small_model)
    patch(device_add_fit, "_STEP_CHOICES", (4,))
    patch(adapted_code, "least_owners", lambda coverage: 2)
    return Site(
        root=setting / "root", command=FAKE_WORKER, has_reference=False,
        benchmarks=lambda spec, target: _benchmarks(spec, peak),
    )  # fmt: skip


def _benchmarks(spec: DeviceSpec, peak: float) -> Benchmarks:
    assert spec.threads == 2
    return Benchmarks(BANDWIDTH, peak, 1 << 26)


def forbidden() -> Samples:
    raise AssertionError("nothing has to be extracted")


def program_ids(setting: Path) -> list[str]:
    asked = MeasureOptions(replay=(str(setting / "tenset"),), per_task=4)
    tasks = campaign_tasks(asked, SimpleNamespace(kind=SimpleNamespace(name="llvm")))
    return [identity for task in tasks for identity, _ in task.programs or ()]


if __name__ == "__main__":
    os.environ.setdefault("CDMPP_FAKE", json.dumps({}))
    add(Path(sys.argv[1]), Path(sys.argv[2]), setattr)
