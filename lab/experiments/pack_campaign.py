"""Packs measured programs for `data/`: `campaign.tar.xz`, and `machine_code.parquet` and
`in_network.json` if the folders have them.

A folder is a measuring campaign or a search; several folders become one campaign. Tasks without
measurements are dropped, and tasks of test networks (except reshapes, which every network has).
To keep the archive small, tasks are sorted by operator and timings are rounded to five digits,
the durations of building and running to three.
"""

from __future__ import annotations

import io
import json
import lzma
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cdmpp.datasets.extraction.extracted import PACKED_CAMPAIGN
from cdmpp.datasets.extraction.machine_code import MachineCode, read_machine_code
from cdmpp.errors import UsageError
from cdmpp.files.atomic import make_folder, write_atomic
from cdmpp.predict.machine_code.cold_memory import (
    KernelInNetwork,
    read_in_network,
    write_in_network,
)
from cdmpp.processes.campaign import CAMPAIGN_FILE, JOURNAL_FILE, read_campaign
from tvm_helper.measure.journal import TASKS_FOLDER, read_journal
from tvm_helper.search.folder_files import SEARCH_FILE, read_search

#: Tasks and traces repeat each other at distances of a hundred megabytes.
_FILTERS = [
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 27, "lc": 4, "pb": 0, "nice_len": 273}
]
_MAY_STAY = "reshape"
#: Field of a measured line -> digits that are kept.
_DIGITS = {"costs_s": 5, "timings_s": 5, "build_s": 3, "run_s": 3}


@dataclass
class _Packed:
    """The campaign merged from all folders.

    Attributes:
        settings: of the first folder.
        tasks: key -> text of its file.
        entries: lines of the journal.
        code: machine code of the programs; None if no folder has it.
        in_network: kernels that were also timed in a network.
    """

    settings: dict[str, Any]
    tasks: dict[str, str] = field(default_factory=dict)
    entries: list[dict[str, Any]] = field(default_factory=list)
    code: MachineCode | None = None
    in_network: list[KernelInNetwork] = field(default_factory=list)


def experiment(folders: tuple[Path, ...], out: Path, judged: Path | None = None) -> None:
    """Writes the archive.

    Args:
        out: folder of the dataset.
        judged: folder with the searches of the networks that evaluate replays, for tasks to drop.
    """
    left_out = set() if judged is None else _judged(judged)
    packed = _Packed(_settings(folders[0]))
    for folder in folders:
        _add(packed, folder, left_out)
    make_folder(out, what="data set")
    archive = out / PACKED_CAMPAIGN
    write_atomic(archive, lambda path: _write(path, packed))
    if packed.code is not None:
        packed.code.save(out)
    if packed.in_network:
        write_in_network(out, packed.in_network)
    programs = sum(entry["kind"] == "measured" for entry in packed.entries)
    print(f"{len(packed.tasks)} tasks, {programs} programs, {archive.stat().st_size} bytes")


def _settings(folder: Path) -> dict[str, Any]:
    """Returns the settings in a campaign's file, or the equivalent ones of a search."""
    if not (folder / SEARCH_FILE).is_file():
        return read_campaign(folder, "cdmpp measure")
    search = read_search(folder)
    known = {"device", "target", "target_kind", "threads", "timing"}
    fixed = {name: value for name, value in search["fixed"].items() if name in known}
    return {**fixed, "machine": search["machine"], "options": search["options"], "rpc": None}


def _add(packed: _Packed, folder: Path, judged: set[str]) -> None:
    """Adds a folder to the packed campaign.

    Raises:
        UsageError: it was measured on another device, or compiled for another target.
    """
    for name in ("device", "target"):
        got, expected = _settings(folder)[name], packed.settings[name]
        if got != expected:
            raise UsageError(f"{folder}: {name} is {got}; expected that of the others, {expected}")
    entries = _as_campaign(read_journal(folder))
    texts = {}
    for key in dict.fromkeys(e["task"] for e in entries if e["kind"] == "measured"):
        texts[key] = (folder / TASKS_FOLDER / f"{key}.json").read_text(encoding="utf-8")
        task = json.loads(texts[key])
        if task["workload_key"] in judged and task["operator"] != _MAY_STAY:
            print(f"left out: {task['name']}, a task of a judged network")
            del texts[key]
        elif key in packed.tasks and json.loads(packed.tasks[key])["module"] != task["module"]:
            # Modules differ only in names, by which a schedule finds its blocks.
            print(f"left out: {task['name']}, whose blocks have other names in an earlier folder")
            del texts[key]
    known = {entry["program_id"] for entry in packed.entries if entry["kind"] == "measured"}
    for entry in entries:
        is_known = entry["kind"] == "measured" and entry["program_id"] in known
        if ("task" not in entry or entry["task"] in texts) and not is_known:
            packed.entries.append(entry)
    packed.tasks = {**texts, **packed.tasks}
    for code in read_machine_code(folder):
        programs = {e["program_id"] for e in packed.entries if e["kind"] == "measured"}
        columns = {} if packed.code is None else packed.code.columns
        columns |= {name: row for name, row in code.columns.items() if name in programs}
        targets = {} if packed.code is None else packed.code.targets
        packed.code = MachineCode({**targets, **code.targets}, columns, kind=code.kind)
    keys = {json.loads(text)["workload_key"] for text in packed.tasks.values()}
    new = [one for one in read_in_network(folder) if one.workload_key in keys]
    packed.in_network += [one for one in new if one not in packed.in_network]


def _as_campaign(entries: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the journal as lines of a campaign; a search has schedules in measured lines."""
    lines = []
    for entry in entries:
        line = dict(entry)
        if line["kind"] == "round":  # time spent by a search
            continue
        if line["kind"] == "measured":
            for name, digits in _DIGITS.items():
                if name in line:
                    line[name] = _rounded(line[name], digits)
            if "record" in line:
                schedule = line.pop("record")[1][0]
                del line["round"]
                program = {"program_id": line["program_id"], "schedule": schedule}
                lines.append({"kind": "drawn", "task": line["task"], "programs": [program]})
        lines.append(line)
    return lines


def _rounded(value: float | list[float], digits: int) -> float | list[float]:
    if isinstance(value, list):
        return [float(f"{one:.{digits}g}") for one in value]
    return float(f"{value:.{digits}g}")


def _judged(folder: Path) -> set[str]:
    paths = folder.glob(f"*/{TASKS_FOLDER}/*.json")
    return {json.loads(path.read_text(encoding="utf-8"))["workload_key"] for path in paths}


def _write(path: Path, packed: _Packed) -> None:
    settings = dict(packed.settings, options=dict(packed.settings["options"]))
    for name in ("network", "tasks_of"):  # paths are specific to this machine
        places = settings["options"].get(name)
        if isinstance(places, list):
            settings["options"][name] = [Path(place).name for place in places]
        elif places is not None:
            settings["options"][name] = Path(places).name
    contents = {CAMPAIGN_FILE: (json.dumps(settings, indent=1, sort_keys=True) + "\n").encode()}
    for key in sorted(
        packed.tasks, key=lambda key: (json.loads(packed.tasks[key])["operator"], key)
    ):
        contents[f"{TASKS_FOLDER}/{key}.json"] = packed.tasks[key].encode()
    lines = [json.dumps(one, separators=(",", ":"), sort_keys=True) for one in packed.entries]
    contents[JOURNAL_FILE] = ("\n".join(lines) + "\n").encode()
    with (
        lzma.open(path, "wb", filters=_FILTERS) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
