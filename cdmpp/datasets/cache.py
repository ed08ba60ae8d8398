"""The training cache: memory-mapped programs and valid measurements of an extracted dataset.

The arrays are .npy files in a folder named after the data hash, so that the cache of changed data
is never used.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from cdmpp.arrays import items_of
from cdmpp.datasets.extraction.extracted import read_manifest, read_table
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.registry import check_known, resolve_devices
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, remove_abandoned, write_json
from cdmpp.programs.compact_ast import LEAF_FEATURE_COUNT
from cdmpp.timing.stats import timer

#: Version of the layout of the cache folder.
_CACHE_VERSION = 3
#: Optional folder of a dataset or its records with descriptions of its devices.
DEVICES_FOLDER = "devices"
_META = "meta.json"
_CHUNK = 1 << 16
_ARRAYS = (
    "program_id", "task_id", "operator", "flop_count", "leaf_offset", "leaf_features", "leaf_extra",
    "leaf_position", "tree_offset", "tree", "schedule_offset", "schedule", "sample_program",
    "sample_device", "latency_s", "latency_std_s",
)  # fmt: skip

_log = logging.getLogger("cdmpp")


@timer("load samples")
def load_samples(
    extracted_dir: Path,
    devices: Iterable[str] | None = None,
    *,
    cache_dir: Path | None = None,
    records_dir: Path | None = None,
) -> Samples:
    """Returns the samples of an extracted dataset.

    Uses measurements without error (error code 0, finite positive latency) of programs with
    features. This includes programs that the original toolchain rejects (`valid` = false) for
    their GPU limits, because they were built and ran. There is one sample per program and device:
    repeats in several records are pooled. Leaf arrays, trees and schedules are memory-mapped.
    Device files in the folder `devices` of the dataset or its records take precedence over the
    registry.

    Args:
        extracted_dir: folder written by `cdmpp dataset extract`.
        devices: labels; None = all.
        cache_dir: folder for the arrays, which datasets may share; None = inside `extracted_dir`.
        records_dir: folder of the records from which the dataset was extracted.

    Raises:
        DataError: the dataset is incomplete, a label has no measurements, or no sample is usable.
        DeviceError: a label is unknown.
    """
    extracted_dir = Path(extracted_dir)
    manifest = read_manifest(extracted_dir)
    parent = extracted_dir
    if cache_dir is not None:  # a folder of its own: `_build` removes all other caches in it
        place = hashlib.sha256(str(extracted_dir.resolve()).encode()).hexdigest()[:12]
        parent = Path(cache_dir) / f"samples-{place}"
    folder = parent / f"cache-v{_CACHE_VERSION}-{manifest['data_hash'][:32]}"
    if not (folder / _META).is_file():
        _build(extracted_dir, manifest, folder)
    meta = json.loads((folder / _META).read_text(encoding="utf-8"))
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    places = [place for place in (records_dir, extracted_dir) if place and place.is_dir()]
    own = [place / DEVICES_FOLDER for place in places]
    return _select(_programs(arrays, meta), arrays, meta, devices, own)


def _programs(arrays: dict[str, Any], meta: dict[str, Any]) -> ProgramArrays:
    return ProgramArrays(
        program_id=_texts(arrays["program_id"]),
        task_id=np.array(arrays["task_id"]),
        tasks=np.array(meta["tasks"], dtype=object),
        operator=np.array(meta["operators"], dtype=object)[arrays["operator"]],
        networks=[[(name, weight) for name, weight in pairs] for pairs in meta["networks"]],
        flop_count=np.array(arrays["flop_count"]),
        leaf_offset=np.array(arrays["leaf_offset"]),
        leaf_features=arrays["leaf_features"],
        leaf_extra=arrays["leaf_extra"],
        leaf_position=arrays["leaf_position"],
        data_hash=meta["data_hash"],
        feature_schema=meta["feature_schema"],
        tree_offset=np.array(arrays["tree_offset"]),
        tree=arrays["tree"],
        schedule_offset=np.array(arrays["schedule_offset"]),
        schedule=arrays["schedule"],
    )


def _texts(values: NDArray[np.bytes_]) -> NDArray[np.object_]:
    """Returns bytes as strings, by chunks: a numpy string array takes four times the memory."""
    texts = np.empty(len(values), dtype=object)
    for start in range(0, len(values), _CHUNK):
        texts[start : start + _CHUNK] = values[start : start + _CHUNK].astype(str)
    return texts


def _select(
    programs: ProgramArrays,
    arrays: dict[str, Any],
    meta: dict[str, Any],
    devices: Iterable[str] | None,
    folders: list[Path],
) -> Samples:
    """Returns the samples of the chosen devices, ordered by device, then program.

    Args:
        devices: labels; None = all.
        folders: folders with additional device files; warnings name the first one.
    """
    known: dict[str, str] = meta["devices"]
    wanted = sorted(known) if devices is None else sorted(set(devices))
    missing = [label for label in wanted if label not in known]
    if missing:
        check_known(missing, known)
        raise DataError(
            f"no usable measurement of device {missing[0]!r} in the extracted dataset; devices "
            f"found: {', '.join(known) or 'none'}; extract it first: "
            f"cdmpp dataset extract --device {missing[0]} --dataset DIR"
        )
    if not wanted:
        raise DataError(
            "the extracted dataset holds no usable measurement (no program has features, "
            "or all failed); see the reject reasons with: cdmpp dataset stats DIR"
        )
    specs, warnings = resolve_devices({label: known[label] for label in wanted}, folders)
    for warning in warnings:
        _log.warning(
            "%s; describe it in a file of %s, like those of cdmpp/devices", warning, folders[0]
        )
    place = np.full(len(known), -1, dtype=np.int64)
    for position, label in enumerate(wanted):
        place[list(known).index(label)] = position
    device = place[arrays["sample_device"]]
    chosen = np.flatnonzero(device >= 0)
    return Samples(
        programs=programs,
        devices=specs,
        program=np.array(arrays["sample_program"])[chosen],
        device=device[chosen],
        latency_s=np.array(arrays["latency_s"])[chosen],
        latency_std_s=np.array(arrays["latency_std_s"])[chosen],
    )


def _build(extracted_dir: Path, manifest: dict[str, Any], folder: Path) -> None:
    """Writes the cache into a temporary folder, then moves it into place in one step.

    Removes the other caches of the same parent folder.
    """
    make_folder(folder.parent, what="training cache")
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        rows, kinds, meta = _write_programs(extracted_dir, manifest, temporary)
        meta["devices"] = _write_samples(extracted_dir, rows, kinds, temporary)
        write_json(temporary / _META, meta)
        with contextlib.suppress(OSError):
            os.replace(temporary, folder)  # fails if another process was faster
        if not (folder / _META).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
    except OSError as error:
        raise DataError(
            f"{folder.parent}: cannot write the training cache ({error.strerror or error})"
        ) from None
    except (ValueError, TypeError, LookupError, OverflowError) as error:  # inconsistent values
        why = " ".join(str(error).split())[:200]
        raise DataError(
            f"{extracted_dir}: its tables do not match ({why}). Rerun: cdmpp dataset extract "
            f"--out {extracted_dir}"
        ) from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    remove_abandoned(folder.parent)
    for old in folder.parent.glob("cache-v*"):
        if old != folder and not old.name.endswith(".tmp"):
            shutil.rmtree(old, ignore_errors=True)


@dataclass(frozen=True)
class _Rows:
    """Row numbers of distinct programs, in the order in which they were read.

    Attributes:
        known: bytes [P], sorted program ids.
        row: int64 [P], row number of each id.
        is_first: bool [read], whether this is the first occurrence of its program.
    """

    known: NDArray[np.bytes_]
    row: NDArray[np.int64]
    is_first: NDArray[np.bool_]

    @classmethod
    def of(cls, ids: NDArray[np.bytes_]) -> _Rows:
        known, first = np.unique(ids, return_index=True)
        is_first = np.zeros(len(ids), bool)
        is_first[first] = True
        return cls(known, (np.cumsum(is_first) - 1)[first], is_first)

    def find(self, ids: NDArray[np.bytes_]) -> NDArray[np.int64]:
        """Returns the row number of each program; -1 if it is unknown."""
        if not len(self.known):
            return np.full(len(ids), -1, np.int64)
        place = np.minimum(np.searchsorted(self.known, ids), len(self.known) - 1)
        return np.where(self.known[place] == ids, self.row[place], -1)


def _write_programs(
    extracted_dir: Path, manifest: dict[str, Any], folder: Path
) -> tuple[_Rows, NDArray[np.object_], dict[str, Any]]:
    """Writes the arrays of programs with features; returns rows, target kinds and metadata."""
    names = ["program_id", "workload_key", "operator", "target_kind", "networks", "flop_count"]
    tasks: dict[str, int] = {}
    operators: dict[str, int] = {}
    networks: list[list[tuple[str, int]]] = []
    kinds: list[str] = []
    lists = ("leaf_position", "tree", "schedule")
    types: dict[str, Any] = {"program_id": "S64", "flop_count": np.float64}
    types |= dict.fromkeys(("task_id", "operator", *lists), np.int64)
    parts = {name: [np.zeros(0, kind)] for name, kind in types.items()}
    for table in read_table(extracted_dir, "programs", [*names, *lists]):
        lengths = {name: _lengths(table[name]) for name in lists}
        has_leaves = lengths["leaf_position"] > 0
        rows = table.select(names).filter(pa.array(has_leaves)).to_pylist()
        task_ids = []
        for row in rows:
            task = f"{row['workload_key']}|{row['target_kind']}"
            if task not in tasks:
                tasks[task] = len(tasks)
                networks.append([(pair["name"], pair["weight"]) for pair in row["networks"]])
                kinds.append(row["target_kind"])
            task_ids.append(tasks[task])
        found: dict[str, Any] = {
            "program_id": [row["program_id"] for row in rows],
            "task_id": task_ids,
            "operator": [operators.setdefault(row["operator"], len(operators)) for row in rows],
            "flop_count": [row["flop_count"] for row in rows],  # None becomes NaN
            **{name: values[has_leaves] for name, values in lengths.items()},
        }
        for name, values in found.items():
            parts[name].append(np.array(values, types[name]))
    columns = {name: np.concatenate(parts.pop(name)) for name in types}
    programs = _Rows.of(columns["program_id"])
    columns = {name: values[programs.is_first] for name, values in columns.items()}
    offsets = {
        name: np.concatenate([[0], np.cumsum(columns.pop(name), dtype=np.int64)]).astype(np.int64)
        for name in lists
    }
    for name, values in columns.items():
        np.save(folder / f"{name}.npy", values)
    for name, file in (("leaf_position", "leaf"), ("tree", "tree"), ("schedule", "schedule")):
        np.save(folder / f"{file}_offset.npy", offsets[name])
    sizes = {name: int(offset[-1]) for name, offset in offsets.items()}
    _write_lists(extracted_dir, manifest, folder, sizes, programs.is_first)
    schema = manifest["schema"]
    meta = {
        "tasks": list(tasks),
        "operators": list(operators),
        "networks": networks,
        "data_hash": manifest["data_hash"],
        "feature_schema": {"leaf": schema["leaf"], "leaf_extra": schema["leaf_extra"]},
    }
    return programs, np.array(kinds, object)[columns["task_id"]], meta


def _write_lists(
    extracted_dir: Path,
    manifest: dict[str, Any],
    folder: Path,
    sizes: dict[str, int],
    is_first: NDArray[np.bool_],
) -> None:
    """Copies leaves, trees and schedules of the featurised programs, in the order of the rows.

    Args:
        sizes: total number of leaves, of entries of `tree` and of bytes of `schedule`.
        is_first: bool [read], for each program with features, whether this is its first occurrence.
    """
    leaves, extra = sizes["leaf_position"], int(manifest["leaf_extra_count"])
    shapes: dict[str, tuple[tuple[int, ...], Any]] = {
        "leaf_features": ((leaves, LEAF_FEATURE_COUNT), np.float32),
        "leaf_extra": ((leaves, extra), np.float32),
        "leaf_position": ((leaves,), np.int32),
        "tree": ((sizes["tree"],), np.int32),
        "schedule": ((sizes["schedule"],), np.uint8),
    }
    arrays = {name: _new_array(folder / f"{name}.npy", *form) for name, form in shapes.items()}
    position = dict.fromkeys(arrays, 0)
    read = 0
    for table in read_table(extracted_dir, "programs", list(arrays)):
        is_taken = _lengths(table["leaf_position"]) > 0
        count = int(is_taken.sum())
        is_taken[is_taken] = is_first[read : read + count]
        read += count
        part = table.filter(pa.array(is_taken))
        for name, array in arrays.items():
            if not array.size:
                continue
            values = _values(part[name]).reshape(-1, *array.shape[1:])
            if values.dtype.kind == "f" and not np.isfinite(values).all():
                raise ValueError(f"{name} has values that are not finite")
            start = position[name]
            array[start : start + len(values)] = values
            position[name] = start + len(values)
    for name, array in arrays.items():
        if isinstance(array, np.memmap):
            array.flush()
        else:
            np.save(folder / f"{name}.npy", array)


def _new_array(path: Path, shape: tuple[int, ...], dtype: Any) -> NDArray[Any]:
    """Returns a memory-mapped array; a plain one if it is empty, which cannot be mapped."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    return open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _lengths(column: Any) -> NDArray[np.int64]:
    """Returns the lengths of lists (in items) or strings (in bytes); 0 for null."""
    measure = pc.binary_length if _is_text(column) else pc.list_value_length
    lengths = pc.fill_null(measure(column.combine_chunks()), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _values(column: Any) -> NDArray[Any]:
    """Returns the items of all lists, or the bytes of all strings, concatenated."""
    if _is_text(column):
        return np.frombuffer("".join(text or "" for text in column.to_pylist()).encode(), np.uint8)
    values: NDArray[Any] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values


def _is_text(column: Any) -> bool:
    return bool(pa.types.is_string(column.type))


def _write_samples(
    extracted_dir: Path, rows: _Rows, target_kinds: NDArray[np.object_], folder: Path
) -> dict[str, str]:
    """Writes the sample arrays; returns device label -> target kind, in index order."""
    labels: dict[str, int] = {}
    parts: list[tuple[NDArray[Any], ...]] = [(np.zeros(0, np.int64),) * 3 + (np.zeros(0),)]
    columns = ["program_id", "device", "costs_s", "error_code"]
    for table in read_table(extracted_dir, "measurements", columns):
        program = rows.find(np.array(table["program_id"].to_pylist(), "S64"))
        own = [labels.setdefault(label, len(labels)) for label in table["device"].to_pylist()]
        counts, costs_s = _lengths(table["costs_s"]), _values(table["costs_s"])
        owner = np.repeat(np.arange(len(table)), counts)
        is_good = (program >= 0) & (table["error_code"].to_numpy() == 0) & (counts > 0)
        is_good[owner[~(np.isfinite(costs_s) & (costs_s > 0))]] = False
        parts.append(
            (np.array(own)[is_good], program[is_good], counts[is_good], costs_s[is_good[owner]])
        )
    device, program, counts, costs_s = map(np.concatenate, zip(*parts, strict=True))
    devices = [label for label in sorted(labels) if (device == labels[label]).any()]
    rank = np.array([devices.index(one) if one in devices else -1 for one in labels], np.int64)
    device = rank[device]
    order = np.lexsort((program, device))
    starts, pooled = _pooled(device[order] * len(rows.row) + program[order], counts[order])
    items, _ = items_of(np.concatenate([[0], np.cumsum(counts)]), order)
    latencies, deviations = _moments(costs_s[items], pooled)
    device, program = device[order][starts], program[order][starts]
    np.save(folder / "sample_device.npy", device)
    np.save(folder / "sample_program.npy", program)
    np.save(folder / "latency_s.npy", latencies)
    np.save(folder / "latency_std_s.npy", deviations)
    last = np.searchsorted(device, np.arange(len(devices)), side="right") - 1
    return dict(zip(devices, target_kinds[program[last]].tolist(), strict=True))


def _pooled(
    key: NDArray[np.int64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Returns the start of each run of equal keys, and the sum of its counts."""
    if not len(key):
        return key, counts
    starts = np.flatnonzero(np.concatenate([[True], np.diff(key) != 0]))
    return starts, np.add.reduceat(counts, starts)


def _moments(
    values: NDArray[np.float64], counts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Returns mean and standard deviation of each of the concatenated lists."""
    first = np.cumsum(counts) - counts
    mean, deviation = np.empty(len(counts)), np.empty(len(counts))
    order = np.argsort(counts, kind="stable")
    for same in np.split(order, np.flatnonzero(np.diff(counts[order])) + 1):
        for start in range(0, len(same), _CHUNK):
            part = same[start : start + _CHUNK]
            lists = values[first[part][:, None] + np.arange(counts[part[0]])]
            mean[part], deviation[part] = lists.mean(axis=1), lists.std(axis=1)
    return mean, deviation
