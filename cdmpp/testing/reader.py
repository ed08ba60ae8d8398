"""Contract test of a reader of measurements: `check_reader(my_reader, FOLDER)`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from cdmpp.datasets.cache import load_samples
from cdmpp.datasets.extraction.extracted import is_extracted_dir, read_manifest
from cdmpp.datasets.samples import Samples
from cdmpp.errors import DataError
from cdmpp.testing.promise import promise, refused

#: (records, output folder) -> anything; writes an extracted dataset into the folder.
Reader = Callable[[Path, Path], object]

#: Plausible range of a tensor program's latency.
_SHORTEST_S, _LONGEST_S = 1e-7, 1e3
_TARGET_KINDS = {"llvm", "cuda", "rocm"}


def check_reader(read: Reader, records: Path) -> None:
    """Checks that a reader turns records into an extracted dataset (`docs/reference/formats.md`).

    Args:
        read: reads records and writes a dataset into a folder; a wrapper of your reader.
        records: records for the reader, with at least one successful measurement.

    Raises:
        AssertionError: a check failed; the message has the requirement.
    """
    with TemporaryDirectory(prefix="cdmpp-contract-") as name:
        folder = Path(name)
        refused(
            lambda: read(folder / "missing", folder / "nothing"),
            DataError,
            "missing records are rejected",
        )
        promise(
            not is_extracted_dir(folder / "nothing"), "a rejected input leaves no finished dataset"
        )
        read(records, folder / "first")
        promise(is_extracted_dir(folder / "first"), "a reader leaves a finished extracted dataset")
        _has_sound_samples(load_samples(folder / "first"))
        read(records, folder / "again")
        hashes = [read_manifest(folder / one)["data_hash"] for one in ("first", "again")]
        promise(hashes[0] == hashes[1], "the same records give the same tables")
        pickles = [
            path.name for path in folder.rglob("*") if path.suffix in (".pkl", ".pickle", ".pt")
        ]
        promise(not pickles, f"no pickle is written, got {pickles}")


def _has_sound_samples(samples: Samples) -> None:
    programs = samples.programs
    promise(len(samples) > 0, "good measurements become samples, got none")
    ids = programs.program_id.tolist()
    promise(
        all(len(one) == 64 and not set(one) - set("0123456789abcdef") for one in ids),
        f"a program id is a sha256 in hex (cdmpp.records.program_id), got {ids[:1]}",
    )
    promise(len(set(ids)) == len(ids), "a program is stored once, however often it was measured")
    kinds = {str(task).rpartition("|")[2] for task in programs.tasks}
    promise(
        kinds <= _TARGET_KINDS,
        f"a task is WORKLOAD|KIND with a kind of {sorted(_TARGET_KINDS)}, got {sorted(kinds)}",
    )
    pairs = set(zip(samples.program.tolist(), samples.device.tolist(), strict=True))
    promise(len(pairs) == len(samples), "a program is one sample on a device")
    seconds = samples.latency_s
    promise(
        np.all((seconds > _SHORTEST_S) & (seconds < _LONGEST_S)),
        f"latencies are seconds, in ({_SHORTEST_S:g}, {_LONGEST_S:g}), got "
        f"{np.nanmin(seconds):g} to {np.nanmax(seconds):g}",
    )
    promise(
        all(spec.name for spec in samples.devices), "every measurement has the label of its device"
    )
    counts = np.diff(programs.leaf_offset)
    promise(np.all(counts > 0), "every program has a leaf")
    promise(
        np.all(np.isfinite(programs.leaf_features)) and np.all(np.isfinite(programs.leaf_extra)),
        "all leaf columns are finite",
    )
    lengths = np.repeat(np.diff(programs.tree_offset), counts)
    promise(
        np.all((programs.leaf_position >= 0) & (programs.leaf_position < lengths)),
        "every leaf has a place in the serialised tree of its program",
    )
