"""Table of machine code of a measured campaign."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.datasets.extraction.machine_code import MachineCode, known_columns
from cdmpp.errors import ReplayError
from cdmpp.processes.campaign import CampaignProgress, Clock, OnProgress, read_campaign
from cdmpp.programs.machine_code.columns import machine_code_columns
from tvm_helper.compat import Target
from tvm_helper.measure.journal import COMMAND, TASKS_FOLDER, read_journal
from tvm_helper.measure.tables import read_task
from tvm_helper.measure.worker import scheduled_module
from tvm_helper.tasks.machine_code import code_of

#: Programs between two writes of the table.
_STEP = 100


@dataclass(frozen=True)
class _Program:
    task: str
    program_id: str
    schedule: Any


def write_machine_code(folder: Path, *, on_progress: OnProgress | None = None) -> MachineCode:
    """Recompiles the programs of a campaign and writes their table; continues an incomplete table.

    Leaves out programs that do not compile or only call a library.

    Raises:
        DataError: the folder has no campaign, or a file cannot be read or written.
    """
    folder = Path(folder)
    targets, programs = _programs(folder)
    known = known_columns(folder, targets)
    columns = {one.program_id: known[one.program_id] for one in programs if one.program_id in known}
    missing = [one for one in programs if one.program_id not in columns]
    target, failed, clock = Target(json.loads(*targets.values())), 0, Clock(len(missing))
    for number, one in enumerate(missing, 1):
        read_task(folder, one.task)  # raises an error that names a missing file
        try:
            module = scheduled_module(str(folder / TASKS_FOLDER / f"{one.task}.json"), one.schedule)
            code = machine_code_columns(code_of(module, target))
            if code is not None:
                columns[one.program_id] = code
        except ReplayError:
            failed += 1
        clock.add()
        if number % _STEP == 0:
            MachineCode(targets, columns).save(folder)
        if on_progress is not None:
            done, left = len(programs) - len(missing) + number, clock.seconds_left()
            on_progress(CampaignProgress("compiling", done, len(programs), failed, left))
    table = MachineCode(targets, columns)
    table.save(folder)
    return table


def _programs(folder: Path) -> tuple[dict[str, str], list[_Program]]:
    """Returns {device: target} of a campaign, and its programs.

    Failed programs are left out: some of them take a compiler hours.
    """
    campaign = read_campaign(folder, COMMAND)
    targets = {str(campaign["device"]): str(campaign["target"])}
    entries = read_journal(folder)
    done = {
        entry["program_id"]
        for entry in entries
        if entry["kind"] == "measured" and not entry["error_code"]
    }
    return targets, [
        _Program(entry["task"], program["program_id"], program["schedule"])
        for entry in entries
        if entry["kind"] == "drawn"
        for program in entry["programs"]
        if program["program_id"] in done
    ]
