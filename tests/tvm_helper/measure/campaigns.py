"""Campaigns for tests: shipped Tenset records, a worker without TVM. Runs one as a process too."""

from __future__ import annotations

import shutil
import sys
import tempfile
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from cdmpp.datasets.tenset.folder import default_dataset_dir
from cdmpp.errors import CdmppError
from tvm_helper.measure.campaign import Campaign
from tvm_helper.measure.options import MeasureOptions
from tvm_helper.measure.sources import MeasuredTask, campaign_tasks
from tvm_helper.measure.target import MeasureTarget

FAKE_WORKER = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))
TARGET = MeasureTarget("epyc-avx2-2c", {"kind": "llvm", "mcpu": "core-avx2", "num-cores": 2}, 2)


RECORDED = "epyc-avx2-1c"
FILES = (
    "([14342fd24968f3a3bd585ea887ddfe5e,1,28,28,256,1,14,14,256],llvm).json.gz",
    "([23b8a36aee55cd70eeb0706ebd25dcf3,8,128,128,64,8,64,64,64],llvm).json.gz",
    "([6629ea5cbcaabf7bda37f634dfc99590,2,128,1024,2,128,1],llvm).json.gz",
)
PROGRAMS = 4


def small_dataset(folder: Path) -> Path:
    """Makes a folder in Tenset's layout with three files of the shipped one."""
    shipped = default_dataset_dir().resolve()
    records = folder / "measure_records" / RECORDED
    records.mkdir(parents=True)
    for name in FILES:
        (records / name).symlink_to(shipped / "measure_records" / RECORDED / name)
    (folder / "network_info").symlink_to(shipped / "network_info")
    return folder


@lru_cache(maxsize=1)
def replayed_tasks() -> tuple[MeasuredTask, ...]:
    """Three small tasks with four programs each, as `--replay` finds them."""
    with tempfile.TemporaryDirectory() as place:
        options = MeasureOptions(replay=(str(small_dataset(Path(place))),), per_task=PROGRAMS)
        return tuple(campaign_tasks(options, SimpleNamespace(kind=SimpleNamespace(name="llvm"))))


def options(**values: Any) -> MeasureOptions:
    defaults: dict[str, Any] = {
        "device": TARGET.device, "replay": ("x",), "per_task": PROGRAMS, "batch": 3,
        "run_timeout_s": 20.0, "build_timeout_s": 20.0, "queue_timeout_s": 120.0,
    }  # fmt: skip
    return MeasureOptions(**{**defaults, **values})


def campaign(folder: Path, *, least_free_bytes: int = 0, **values: Any) -> Campaign:
    return Campaign(
        options(**values), folder, replayed_tasks(), TARGET, command=FAKE_WORKER,
        least_free_bytes=least_free_bytes,
    )  # fmt: skip


def program_ids() -> list[str]:
    """In the order in which they are measured: the first of every task, then the second, ..."""
    columns = [[identity for identity, _ in task.programs or ()] for task in replayed_tasks()]
    return [column[row] for row in range(PROGRAMS) for column in columns]


def on_small_disk(folder: Path, keep: Path) -> None:
    """On a disk that has been made small: fails, then goes on when there is space again."""
    free = shutil.disk_usage(folder).free
    filler = folder / "filler"
    campaign_folder = folder / "campaign"
    few = campaign(campaign_folder, most_programs=3)
    print(few.run().measured)
    filler.write_bytes(b"x" * (shutil.disk_usage(folder).free - 4096))
    try:
        campaign(campaign_folder).run()
    except CdmppError as error:
        print(f"{type(error).__name__}: {error}")
    filler.unlink()
    print(campaign(campaign_folder).run().measured)
    shutil.copytree(campaign_folder, keep)
    assert free > 0


if __name__ == "__main__":
    place = Path(sys.argv[2])
    if sys.argv[1] == "small-disk":
        on_small_disk(place, Path(sys.argv[3]))
    else:
        made = campaign(place)
        made = Campaign(
            replace(options(), run_timeout_s=600.0), place, replayed_tasks(), TARGET,
            command=FAKE_WORKER, least_free_bytes=0,
        )  # fmt: skip
        made.run()
