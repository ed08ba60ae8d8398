"""Mutated configurations, device files, profiles and archives."""

from __future__ import annotations

import gzip
import json
import random
import shutil
from collections.abc import Callable, Iterator
from dataclasses import asdict
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from cdmpp.analytic.embedding.shapes import EmbeddingPreset
from cdmpp.autotune.options import AutotuneOptions
from cdmpp.config import dump_text, load_config, to_dict
from cdmpp.datasets.fetch.fetch import fetch
from cdmpp.datasets.fetch.registry import Download, PublicSource, SourcePart
from cdmpp.devices.device_file import read_device_file
from cdmpp.devices.registry import get_device
from cdmpp.devices.vector import device_vector
from cdmpp.files.restricted_pickle import load_restricted
from cdmpp.networks.campaign.options import NetworksConfig
from cdmpp.profiling.explain import explain
from cdmpp.profiling.merge import group_rows
from cdmpp.profiling.read import read_profile
from cdmpp.profiling.timeline import write_timeline
from cdmpp.profiling.utilisation import utilisation
from cdmpp.training.finetune.run import FinetuneRunOptions
from cdmpp.training.options import TrainOptions
from lab.suites.options import SuiteOptions
from tests.fuzz.bombs import compressed_bombs, tar_archives, zip_archives
from tests.fuzz.fuzz_readers import AUTOTVM_LINE
from tests.fuzz.mutate import mutate_bytes, mutate_value
from tests.fuzz.outcome import Outcome, check_finite
from tests.paths import ROOT
from tests.profiling.formats import test_nvprof, test_sqlite, test_tables, test_traces

#: A case and what reads it; see `Outcome.run`.
Case = tuple[bytes, Callable[[], str | None]]
_CONFIG_CLASSES: dict[str, Any] = {
    "suites": SuiteOptions, "finetune": FinetuneRunOptions, "embedding": EmbeddingPreset,
    "autotune": AutotuneOptions, "networks": NetworksConfig, "train": TrainOptions,
}  # fmt: skip
_LAUGHS = "\n".join(
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]",
        *(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 30)),
    ]
)
#: YAML that asks for much, names code, or holds itself.
YAML_BOMBS = (
    _LAUGHS, f"{_LAUGHS}\nseed: *a29\ndevices: *a29", "a: &a [*a]\nseed: *a",
    "a: &a {b: *a}\n<<: *a",
    "[" * 3000, "{a: " * 3000, "- " * 3000 + "x", "!!python/object/apply:os.system ['true']",
    "!!python/name:os.system", "seed: !!python/tuple [1]", "seed: 2001-99-99", "2001-99-99: 1",
    "seed: " + "9" * 10_000, "? [a, b]\n: 1", "? {a: b}\n: 1", "seed: !!binary 'x'",
    "seed: 1\nseed: 2",
    "%YAML 9.9\n---\nseed: 1", "---\n---\n", "seed: 0o777777777777777777777777777777",
    "seed: 190:20:30:59:59:59:59", "\x00", "\ufeffseed: 1", "seed: .nan", "devices: .inf", "null",
    "seed: \"\\uD800\"", "seed: !!float nan", "&a " * 500, "*a", "seed: !!set {x}", "devices: *x",
)  # fmt: skip


def fuzz(
    cases: Callable[[random.Random, Path], Iterator[Case]],
    folder: Path,
    *,
    count: int,
    seed: int,
    bound_s: float = 20.0,
) -> Outcome:
    """Runs the first `count` cases of a kind.

    The case that runs is in `folder/case`, for whoever finds that this process has died of it.
    """
    outcome = Outcome()
    source = cases(random.Random(seed), folder)
    for _ in range(count):
        case, action = next(source)
        (folder / "case").write_bytes(case[:2000])
        outcome.run(bound_s, case, action)
    return outcome


def configurations(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields mutated YAML of every kind of configuration."""
    path = folder / "config.yaml"
    seeds = [
        (cls, file.read_text("utf-8"))
        for name, cls in _CONFIG_CLASSES.items()
        for file in sorted((ROOT / "configs" / name).glob("*.yaml"))
    ]

    def read(cls: Any, case: bytes) -> None:
        path.write_bytes(case)
        options = load_config(cls, path)
        check_finite(to_dict(options))
        path.write_text(dump_text(options))
        assert load_config(cls, path) == options, "it is not what it was once it is written"

    def override(cls: Any, text: str) -> None:
        load_config(cls, None, overrides=[text])

    while True:
        cls, text = rng.choice(seeds)
        case = _mutated_yaml(rng, text)
        if rng.random() < 0.2:
            line = case.decode("utf-8", "replace")[:200].replace(": ", "=", 1)
            yield line.encode(), lambda c=cls, t=line: override(c, t)  # type: ignore[misc]
        else:
            yield case, lambda c=cls, d=case: read(c, d)  # type: ignore[misc]


def device_files(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields mutated descriptions of devices."""
    path = folder / "device.yaml"
    seeds = []
    for file in sorted((ROOT / "cdmpp" / "devices").glob("*.yaml")):
        whole = yaml.safe_load(file.read_text("utf-8"))
        for label in list(whole["devices"])[:3]:
            seeds.append(yaml.safe_dump({**whole, "devices": {label: whole["devices"][label]}}))

    def read(case: bytes) -> None:
        path.write_bytes(case)
        for spec in read_device_file(path).devices.values():
            json.dumps(asdict(spec), allow_nan=False)
            check_finite(device_vector(spec))

    while True:
        case = _mutated_yaml(rng, rng.choice(seeds))
        yield case, lambda d=case: read(d)  # type: ignore[misc]


def _mutated_yaml(rng: random.Random, text: str) -> bytes:
    kind = rng.random()
    if kind < 0.1:
        return rng.choice(YAML_BOMBS).encode("utf-8", "surrogatepass")
    if kind < 0.5:
        return mutate_bytes(rng, text.encode())
    value = yaml.safe_load(text)
    for _ in range(rng.randint(1, 3)):
        value = mutate_value(rng, value)
    try:
        return yaml.safe_dump(value).encode("utf-8", "surrogatepass")
    except (yaml.YAMLError, ValueError, RecursionError):
        return b"[" * 3000


def profiles(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields mutated files of profilers: tables, traces and databases."""
    path, timeline = folder / "profile", folder / "timeline.html"
    texts = [
        value
        for module in (test_nvprof, test_tables)
        for name, value in vars(module).items()
        if name.isupper() and isinstance(value, str)
    ]
    traces = [test_traces.gpu_trace(), test_traces.HL100]
    for name, make in (("nvprof", test_sqlite.make_nvprof), ("nsys", test_sqlite.make_nsys)):
        make(folder / f"{name}.sqlite")
    databases = [(folder / f"{name}.sqlite").read_bytes() for name in ("nvprof", "nsys")]

    def read(case: bytes) -> None:
        path.write_bytes(case)
        profile = read_profile(path)
        check_finite([list(asdict(row).values()) for row in profile.rows])
        assert all(row.total_s >= 0 and row.calls >= 0 for row in profile.rows), "negative time"
        group_rows(profile.rows, by_shape=True)
        json.dumps([asdict(one) for one in explain(profile, get_device("a100-40gb"))], default=str)
        utilisation(profile)
        if profile.events is not None:
            check_finite(profile.events.start_s)
            write_timeline(profile, timeline)

    while True:
        kind = rng.random()
        if kind < 0.4:
            case = mutate_bytes(rng, rng.choice(texts).encode())
        elif kind < 0.7:
            value = rng.choice(traces)
            for _ in range(rng.randint(1, 4)):
                value = mutate_value(rng, value)
            case = json.dumps(value).encode("utf-8", "surrogatepass")
        elif kind < 0.8:
            case = mutate_bytes(rng, json.dumps(rng.choice(traces)).encode())
        elif kind < 0.95:
            case = mutate_bytes(rng, rng.choice(databases))
        else:
            case = mutate_bytes(rng, gzip.compress(rng.choice(texts).encode()))
        yield case, lambda d=case: read(d)  # type: ignore[misc]


def archives(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields archives with members that lead elsewhere, bombs, and damaged ones; all are fetched
    as records. Nothing may be written but below the folder that is given, and no more than the
    registry allows.
    """
    inner, most_bytes = "logs/t4/a.kernel.log", 4 << 20
    place, cache = folder / "place", folder / "place" / "cache"
    line = json.dumps(json.loads(AUTOTVM_LINE)).replace("-model=x", "-model=t4").encode() + b"\n"

    def read(case: bytes, suffix: str) -> None:
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        archive = place / f"logs{suffix}"
        archive.write_bytes(case)
        source = PublicSource(
            name="logs", title="", kind="autotvm", devices=("t4",), licence="", citation="",
            homepage="", most_bytes=most_bytes,
            downloads=(Download(archive.name, f"http://127.0.0.1:9/{archive.name}"),),
            parts=(SourcePart("logs/t4/**", "t4.json"),),
        )  # fmt: skip
        try:
            fetch(source, cache, origin=str(archive))
        finally:
            files = [path for path in folder.rglob("*") if not path.is_dir()]
            size = sum(path.lstat().st_size for path in files if cache in path.parents)
            assert size <= most_bytes + 100_000, f"{size} bytes were unpacked"
            assert not any(path.is_symlink() for path in files), "a link was made"
            known = {archive, folder / "case"}
            strange = [p for p in files if p not in known and cache / "fetched" not in p.parents]
            assert not strange, f"written elsewhere: {strange}"
            assert not Path("/tmp/cdmpp-member").exists(), "written to /tmp"

    made = chain(
        ((data, ".tar.gz") for _, data in tar_archives(inner, line, bomb_mib=64)),
        ((data, ".zip") for _, data in zip_archives(inner, line, bomb_mib=64)),
        ((data, ".tar.gz") for _, data in compressed_bombs(64)),
    )
    whole = [
        (next(iter(tar_archives("logs/t4/x", line, bomb_mib=0)))[1], ".tar.gz"),
        (next(iter(zip_archives("logs/t4/x", line, bomb_mib=0)))[1], ".zip"),
    ]
    for case, suffix in made:
        yield case, lambda d=case, s=suffix: read(d, s)  # type: ignore[misc]
    while True:
        data, suffix = rng.choice(whole)
        case = mutate_bytes(rng, data)
        if suffix == ".tar.gz" and rng.random() < 0.5:
            case = gzip.compress(mutate_bytes(rng, gzip.decompress(data)))
        yield case, lambda d=case, s=suffix: read(d, s)  # type: ignore[misc]


def packed_files(rng: random.Random, folder: Path) -> Iterator[Case]:
    """Yields gzip and xz streams that are far larger than their files, or break, to every reader of
    such.
    """
    from cdmpp.files.boosted_trees import load_booster

    def booster(path: Path) -> Any:
        return load_booster(path, hint="train again")

    readers: tuple[tuple[str, Callable[[Path], Any]], ...] = (
        ("a.json", read_profile), ("a.pkl", load_restricted), ("trees.ubj.xz", booster),
        ("trees.json.gz", booster),
    )  # fmt: skip

    def read(name: str, reader: Callable[[Path], Any], case: bytes) -> None:
        for old in folder.glob("trees*"):
            old.unlink()
        (folder / name).write_bytes(case)
        reader(folder / name)

    while True:
        for _, data in compressed_bombs(rng.choice((1, 40, 300))):
            for name, reader in readers:
                case = data if rng.random() < 0.5 else mutate_bytes(rng, data)
                yield case, lambda n=name, r=reader, d=case: read(n, r, d)  # type: ignore[misc]
