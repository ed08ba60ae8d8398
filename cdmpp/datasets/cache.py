"""The training cache: the featurised programs and good measurements of an extracted dataset,
memory-mapped.

The arrays are .npy files in a folder named after the data hash, so that data that changed is never
mistaken for what was cached.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.format import open_memmap
from numpy.typing import NDArray

from cdmpp.datasets.extraction.extracted import read_manifest, read_table
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.devices.registry import check_known, resolve_devices
from cdmpp.errors import DataError
from cdmpp.files.atomic import make_folder, remove_abandoned, write_json
from cdmpp.programs.compact_ast import LEAF_FEATURE_COUNT

#: Version of the layout of the cache folder.
_CACHE_VERSION = 2
#: Folder of an extracted dataset with descriptions of its devices, where it has any.
DEVICES_FOLDER = "devices"
_META = "meta.json"
_ARRAYS = (
    "program_id", "task_id", "flop_count", "leaf_offset", "leaf_features", "leaf_extra",
    "leaf_position", "tree_offset", "tree", "schedule_offset", "schedule", "sample_program",
    "sample_device", "latency_s", "latency_std_s",
)  # fmt: skip

_log = logging.getLogger("cdmpp")


def load_samples(
    extracted_dir: Path, devices: Iterable[str] | None = None, *, cache_dir: Path | None = None
) -> Samples:
    """Returns the samples of an extracted dataset.

    Taken are measurements without error (error code 0, finite positive latency) of programs with
    features, also of those that the original toolchain rejects (`valid` = false) for their GPU
    limits: who measured them built them, and they ran. One sample per program and device: repeats
    in several records are pooled. Leaf arrays, trees and schedules are memory-mapped. Device files
    in a folder `devices` of the dataset describe labels beside (and before) the registry.

    Args:
        extracted_dir: folder that `cdmpp dataset extract` wrote.
        devices: labels; None = all.
        cache_dir: where the arrays go; None = inside `extracted_dir`.

    Raises:
        DataError: no complete dataset, a label without measurements there, or no usable sample.
        DeviceError: nobody knows a label.
    """
    extracted_dir = Path(extracted_dir)
    manifest = read_manifest(extracted_dir)
    parent = Path(cache_dir) if cache_dir is not None else extracted_dir
    folder = parent / f"cache-v{_CACHE_VERSION}-{manifest['data_hash'][:32]}"
    if not (folder / _META).is_file():
        _build(extracted_dir, manifest, folder)
    meta = json.loads((folder / _META).read_text(encoding="utf-8"))
    arrays = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in _ARRAYS}
    own = [extracted_dir / DEVICES_FOLDER]
    return _select(_programs(arrays, meta), arrays, meta, devices, own)


def _programs(arrays: dict[str, Any], meta: dict[str, Any]) -> ProgramArrays:
    return ProgramArrays(
        program_id=np.array(arrays["program_id"].astype(str), dtype=object),
        task_id=np.array(arrays["task_id"]),
        tasks=np.array(meta["tasks"], dtype=object),
        operator=np.array(meta["operators"], dtype=object),
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


def _select(
    programs: ProgramArrays,
    arrays: dict[str, Any],
    meta: dict[str, Any],
    devices: Iterable[str] | None,
    folders: list[Path],
) -> Samples:
    """Returns the samples of the chosen devices, ordered by device, then program.

    Args:
        folders: where device files are that the registry does not have.
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
            "or all failed); see the reject reasons with: cdmpp dataset stats --dataset DIR"
        )
    specs, warnings = resolve_devices({label: known[label] for label in wanted}, folders)
    for warning in warnings:
        _log.warning(warning)
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
    """Writes the cache beside its final place and moves it there in one step."""
    make_folder(folder.parent, what="training cache")
    temporary = folder.with_name(f"{folder.name}.{os.getpid()}.tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir()
        meta = _write_programs(extracted_dir, manifest, temporary)
        rows = meta.pop("rows")
        meta["devices"] = _write_samples(extracted_dir, rows, meta["target_kinds"], temporary)
        write_json(temporary / _META, meta)
        with contextlib.suppress(OSError):
            os.replace(temporary, folder)  # fails when another process was first
        if not (folder / _META).is_file():
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(temporary, folder)
    except OSError as error:
        raise DataError(
            f"{folder.parent}: cannot write the training cache ({error.strerror or error})"
        ) from None
    except (ValueError, TypeError, LookupError, OverflowError) as error:  # of values, not of bytes
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


def _write_programs(extracted_dir: Path, manifest: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Writes the arrays of the featurised programs; returns the meta data and `rows`, id -> row."""
    columns = ["program_id", "workload_key", "operator", "target_kind", "networks", "flop_count"]
    rows: dict[str, int] = {}
    tasks: dict[str, int] = {}
    networks: list[list[tuple[str, int]]] = []
    kinds: list[str] = []
    operators: list[str] = []
    task_ids: list[int] = []
    flops: list[float] = []
    lengths: dict[str, list[int]] = {"leaf_position": [], "tree": [], "schedule": []}
    for table in read_table(extracted_dir, "programs", [*columns, *lengths]):
        measured = {name: _lengths(table[name]) for name in lengths}
        for number, row in enumerate(table.select(columns).to_pylist()):
            if not measured["leaf_position"][number] or row["program_id"] in rows:
                continue
            rows[row["program_id"]] = len(rows)
            task = f"{row['workload_key']}|{row['target_kind']}"
            if task not in tasks:
                tasks[task] = len(tasks)
                networks.append([(pair["name"], pair["weight"]) for pair in row["networks"]])
                kinds.append(row["target_kind"])
            task_ids.append(tasks[task])
            operators.append(row["operator"])
            flops.append(float("nan") if row["flop_count"] is None else row["flop_count"])
            for name, found in measured.items():
                lengths[name].append(int(found[number]))
    offsets = {
        name: np.concatenate([[0], np.cumsum(found, dtype=np.int64)]).astype(np.int64)
        for name, found in lengths.items()
    }
    np.save(folder / "program_id.npy", np.array(list(rows), dtype="S64"))
    np.save(folder / "task_id.npy", np.array(task_ids, dtype=np.int64))
    np.save(folder / "flop_count.npy", np.array(flops, dtype=np.float64))
    np.save(folder / "leaf_offset.npy", offsets["leaf_position"])
    np.save(folder / "tree_offset.npy", offsets["tree"])
    np.save(folder / "schedule_offset.npy", offsets["schedule"])
    _write_lists(extracted_dir, manifest, folder, {n: int(o[-1]) for n, o in offsets.items()})
    schema = manifest["schema"]
    return {
        "rows": rows,
        "tasks": list(tasks),
        "target_kinds": [kinds[task] for task in task_ids],
        "operators": operators,
        "networks": networks,
        "data_hash": manifest["data_hash"],
        "feature_schema": {"leaf": schema["leaf"], "leaf_extra": schema["leaf_extra"]},
    }


def _write_lists(
    extracted_dir: Path, manifest: dict[str, Any], folder: Path, sizes: dict[str, int]
) -> None:
    """Copies leaves, trees and schedules of the featurised programs, in the order of the rows.

    Args:
        sizes: total number of leaves, of entries of `tree` and of bytes of `schedule`.
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
    seen: set[str] = set()
    for table in read_table(extracted_dir, "programs", ["program_id", *arrays]):
        part = table.filter(_first_featurised(table, seen))
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
    """Returns a memory-mapped array to fill; an empty one, which cannot be mapped, is plain."""
    if 0 in shape:
        return np.zeros(shape, dtype)
    return open_memmap(path, mode="w+", dtype=dtype, shape=shape)


def _lengths(column: Any) -> NDArray[np.int64]:
    """Returns the lengths of lists (in items) or texts (in bytes); null counts as empty."""
    measure = pc.binary_length if _is_text(column) else pc.list_value_length
    lengths = pc.fill_null(measure(column.combine_chunks()), 0)
    return np.asarray(lengths.to_numpy(zero_copy_only=False), np.int64)


def _values(column: Any) -> NDArray[Any]:
    """Returns the items of all lists, or the bytes of all texts, one after another."""
    if _is_text(column):
        return np.frombuffer("".join(text or "" for text in column.to_pylist()).encode(), np.uint8)
    values: NDArray[Any] = column.combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return values


def _is_text(column: Any) -> bool:
    return bool(pa.types.is_string(column.type))


def _first_featurised(table: Any, seen: set[str]) -> Any:
    """Returns the mask of programs with features that are not in `seen`, and adds them to it."""
    mask: list[bool] = []
    leaves = _lengths(table["leaf_position"])
    for identity, leaf_count in zip(table["program_id"].to_pylist(), leaves, strict=True):
        mask.append(bool(leaf_count) and identity not in seen)
        if leaf_count:
            seen.add(identity)
    return pa.array(mask, pa.bool_())


def _write_samples(
    extracted_dir: Path, rows: dict[str, int], target_kinds: list[str], folder: Path
) -> dict[str, str]:
    """Writes the sample arrays; returns device label -> target kind, in index order."""
    costs: dict[tuple[str, int], list[float]] = {}
    columns = ["program_id", "device", "costs_s", "error_code"]
    for table in read_table(extracted_dir, "measurements", columns):
        for row in table.to_pylist():
            program = rows.get(row["program_id"])
            if program is None or row["error_code"] != 0 or not _are_good(row["costs_s"]):
                continue
            costs.setdefault((row["device"], program), []).extend(row["costs_s"])
    keys = sorted(costs)
    devices = {device: target_kinds[program] for device, program in keys}
    index = {device: position for position, device in enumerate(devices)}
    latencies: NDArray[np.float64] = np.array([np.mean(costs[key]) for key in keys], np.float64)
    deviations: NDArray[np.float64] = np.array([np.std(costs[key]) for key in keys], np.float64)
    np.save(folder / "sample_device.npy", np.array([index[d] for d, _ in keys], dtype=np.int64))
    np.save(folder / "sample_program.npy", np.array([p for _, p in keys], dtype=np.int64))
    np.save(folder / "latency_s.npy", latencies)
    np.save(folder / "latency_std_s.npy", deviations)
    return devices


def _are_good(costs_s: list[float]) -> bool:
    return len(costs_s) > 0 and all(np.isfinite(cost) and cost > 0 for cost in costs_s)
