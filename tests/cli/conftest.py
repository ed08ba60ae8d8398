"""A small real dataset in Tenset's layout, cut from the shipped one, and a model trained on it."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import pytest

from cdmpp.cli.main import main
from cdmpp.datasets.tenset.folder import default_dataset_dir

DEVICES = ("xeon-avx2-1c", "epyc-avx512-2c")
TASKS = 14
PROGRAMS = 6

#: Options that make a training of seconds.
QUICK = [
    "--set", "transformer.network.hidden=32",
    "--set", "transformer.network.layers=1",
    "--set", "transformer.loop.epochs=3",
    "--set", "transformer.loop.programs_per_batch=16",
    "--set", "gbdt.trees=10",
    "--set", "gbdt.threads=1",
    "--set", "fractions=[0.5, 0.2, 0.3]",
]  # fmt: skip


def read_text(path: Path) -> str:
    content = path.read_bytes()
    return (gzip.decompress(content) if path.suffix == ".gz" else content).decode()


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Path:
    """A dataset folder with two devices, 14 tasks and 6 programs a task."""
    source = default_dataset_dir()
    folder = tmp_path_factory.mktemp("small") / "small-tenset"
    names = None
    for device in DEVICES:
        target = folder / "measure_records" / device
        target.mkdir(parents=True)
        files = {path.name: path for path in (source / "measure_records" / device).iterdir()}
        if names is None:
            other = {path.name for path in (source / "measure_records" / DEVICES[1]).iterdir()}
            names = sorted(set(files) & other)[:: max(1, len(other) // TASKS)][:TASKS]
        for name in names:
            lines = read_text(files[name]).splitlines()[:PROGRAMS]
            (target / name.removesuffix(".gz")).write_text("\n".join(lines) + "\n")
    os.symlink(source / "network_info", folder / "network_info")
    return folder


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="session")
def trained(dataset, cache, tmp_path_factory) -> Path:
    """A finished run folder."""
    run = tmp_path_factory.mktemp("run") / "trained"
    arguments = ["train", "--dataset", str(dataset), "--cache", str(cache), "--jobs", "1"]
    assert main([*arguments, "--out", str(run), "-q", *QUICK]) == 0
    return run


def json_of(capsys) -> object:
    """Returns the JSON value that the command printed; fails when it printed anything else."""
    return json.loads(capsys.readouterr().out)
