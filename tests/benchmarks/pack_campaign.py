"""A measuring campaign as `data/` keeps it: `python -m tests.benchmarks.pack_campaign CAMPAIGN DIR`
writes `campaign.tar.xz`, and `machine_code.parquet` where the campaign has one.

Tasks of which nothing was measured are left out, and those that `--judged DIR` finds: tasks of the
searches of the networks by which replays are judged (reshapes, which every network has, may stay).
Tasks of one operator come together, so that the archive is small.
"""

from __future__ import annotations

import argparse
import io
import json
import lzma
import sys
import tarfile
from pathlib import Path
from typing import Any

from cdmpp.datasets.atomic import make_folder, write_atomic
from cdmpp.datasets.machine_code import MachineCode, read_machine_code
from tvm_helper.measure_journal import CAMPAIGN_FILE, JOURNAL_FILE, TASKS_FOLDER, read_journal
from tvm_helper.measure_tables import read_campaign, read_task

#: Tasks and traces repeat each other over a hundred megabytes.
_FILTERS = [
    {"id": lzma.FILTER_LZMA2, "preset": 6, "dict_size": 1 << 27, "lc": 4, "pb": 0, "nice_len": 273}
]
_MAY_STAY = "reshape"


def main() -> int:
    """Writes the archive; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("campaign", type=Path)
    parser.add_argument("out", type=Path, help="folder of the data set")
    parser.add_argument("--judged", type=Path, help="folder with the searches of judged networks")
    args = parser.parse_args()
    folder: Path = args.campaign
    entries = read_journal(folder)
    tasks = {
        key: read_task(folder, key)
        for key in dict.fromkeys(e["task"] for e in entries if e["kind"] == "measured")
    }
    judged = set() if args.judged is None else _judged(args.judged)
    for key, task in list(tasks.items()):
        if task["workload_key"] in judged and task["operator"] != _MAY_STAY:
            print(f"left out: {task['name']}, a task of a judged network")
            del tasks[key]
    kept = [e for e in entries if "task" not in e or e["task"] in tasks]
    order = sorted(tasks, key=lambda key: (tasks[key]["operator"], key))
    make_folder(args.out, what="data set")
    archive = args.out / "campaign.tar.xz"
    write_atomic(archive, lambda path: _write(path, folder, kept, order))
    code = read_machine_code(folder)
    if code is not None:
        programs = {e["program_id"] for e in kept if e["kind"] == "measured"}
        columns = {name: row for name, row in code.columns.items() if name in programs}
        MachineCode(code.target, columns).save(args.out)
    print(f"{len(tasks)} tasks, {archive.stat().st_size} bytes")
    return 0


def _judged(folder: Path) -> set[str]:
    paths = folder.glob(f"*/{TASKS_FOLDER}/*.json")
    return {json.loads(path.read_text(encoding="utf-8"))["workload_key"] for path in paths}


def _write(path: Path, folder: Path, entries: list[dict[str, Any]], tasks: list[str]) -> None:
    lines = [json.dumps(entry, separators=(",", ":"), sort_keys=True) for entry in entries]
    campaign = read_campaign(folder)
    for name in ("network", "tasks_of"):  # the places of files are this machine's
        places = campaign["options"].get(name, [])
        campaign["options"][name] = [Path(place).name for place in places]
    contents = {CAMPAIGN_FILE: (json.dumps(campaign, indent=1, sort_keys=True) + "\n").encode()}
    for key in tasks:
        name = f"{TASKS_FOLDER}/{key}.json"
        contents[name] = (folder / name).read_bytes()
    contents[JOURNAL_FILE] = ("\n".join(lines) + "\n").encode()
    with (
        lzma.open(path, "wb", filters=_FILTERS) as stream,
        tarfile.open(fileobj=stream, mode="w") as archive,
    ):
        for name, content in contents.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


if __name__ == "__main__":
    sys.exit(main())
