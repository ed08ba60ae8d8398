"""`make attack`: campaigns of mutated and hand-made data, resumable, onto runs/results/fuzz.md.

    python -m tests.fuzz.attack --most 1000 --page runs/results

Each campaign runs in parts, each part in a process of its own with bounded memory: one that dies or
takes too long is a crash, and so is one of `forbidden events`. What a part found is kept in
`--state` until the code changes; the same command goes on where it was stopped. Part N of a
campaign has seed N + `--seed`: a part alone is `--part NAME SEED COUNT`.
"""

from __future__ import annotations

import argparse
import functools
import hashlib
import json
import math
import resource
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.datasets.tenset.task_index import load_tasks
from cdmpp.files.atomic import make_folder, read_json, write_json
from cdmpp.text import markdown_table
from lab.pages import write_page
from lab.stamp import stamp
from tests.fuzz import fuzz_models, fuzz_names, fuzz_readers, fuzz_texts
from tests.fuzz.fuzz_native import fuzz_native_lines, fuzz_sanitized
from tests.fuzz.fuzz_readers import SHIPPED, shipped_lines
from tests.fuzz.outcome import Outcome
from tests.paths import ROOT

_MEMORY_BYTES = 6 << 30
_PART_TIMEOUT_S = 3600
_STATE = ROOT / "cache" / "attack"
#: (folder that stays, cases, seed) -> what came of them.
Run = Callable[[Path, int, int], Outcome]


@dataclass(frozen=True)
class Campaign:
    """One kind of attack.

    Attributes:
        what: what is sent, and what must hold.
        count: cases of a whole campaign.
        part: cases of a part.
    """

    what: str
    count: int
    part: int
    run: Run


def _of_cases(cases: Any, bound_s: float = 20.0) -> Run:
    return lambda folder, count, seed: fuzz_texts.fuzz(
        cases, folder, count=count, seed=seed, bound_s=bound_s
    )


@functools.cache
def _tasks() -> Any:
    return load_tasks(SHIPPED / "network_info")


CAMPAIGNS: dict[str, Campaign] = {
    "record lines": Campaign(
        "mutated Ansor records, read twice, by the fast and by the full reader, which say the same",
        1_000_000, 20_000,
        lambda folder, count, seed: fuzz_readers.fuzz_lines(
            shipped_lines(), folder, count=count, seed=seed
        ),
    ),
    "native lines": Campaign(
        "such lines in the native code and in the Python reference: verdicts, reasons, trees, "
        "positions and our own columns equal to the bit, leaf columns to 1e-6",
        1_000_000, 10_000,
        lambda folder, count, seed: fuzz_native_lines(
            shipped_lines(), _tasks(), count=count, seed=seed
        ),
    ),
    "sanitized": Campaign(
        "such lines, and mutated steps, in the native code under address and undefined-behaviour "
        "sanitizers",
        1_000_000, 50_000,
        lambda folder, count, seed: fuzz_sanitized(_STATE, count=count, seed=seed),
    ),
    "other lines": Campaign(
        "records of AutoTVM and MetaSchedule", 100_000, 20_000,
        lambda folder, count, seed: fuzz_readers.fuzz_other_lines(count, seed=seed),
    ),
    "extraction": Campaign(
        "files of 100 mutated records to Parquet: every record is kept or counted", 10_000, 2_500,
        lambda folder, count, seed: fuzz_readers.fuzz_extraction(
            shipped_lines(), folder, count=count, seed=seed
        ),
    ),
    "pickles": Campaign(
        "mutated task pickles and bombs made by hand; an audit hook hears what they cause",
        100_000, 10_000,
        lambda folder, count, seed: fuzz_readers.fuzz_pickles(
            fuzz_readers.small_pickles(), folder, count=count, seed=seed
        ),
    ),
    "computations": Campaign(
        "the JSON graphs in task pickles", 10_000, 2_000,
        lambda folder, count, seed: fuzz_readers.fuzz_graphs(_tasks(), count=count, seed=seed),
    ),
    "configurations": Campaign(
        "YAML of every kind and overrides: what is taken is finite and is the same once written",
        10_000, 2_000, _of_cases(fuzz_texts.configurations),
    ),
    "device files": Campaign(
        "descriptions of devices: what is taken has a finite vector", 10_000, 2_000,
        _of_cases(fuzz_texts.device_files),
    ),
    "datasets": Campaign(
        "Parquet shards with damaged bytes, odd values or another manifest: samples are finite and "
        "positive",
        10_000, 2_500, _of_cases(fuzz_models.datasets),
    ),
    "run folders": Campaign(
        "safetensors, trees and JSON of a model: what is taken has finite answers or says why not",
        10_000, 2_500, _of_cases(fuzz_models.run_folders),
    ),
    "tuning databases": Campaign(
        "MetaSchedule's two files", 10_000, 2_000, _of_cases(fuzz_models.tuning_databases)
    ),
    "networks": Campaign("ONNX files", 10_000, 2_500, _of_cases(fuzz_models.networks, 60.0)),
    "scripts": Campaign(
        "damaged TVMScript, and such that would run something: nothing is run", 10_000, 2_500,
        _of_cases(fuzz_models.scripts, 60.0),
    ),
    "profiles": Campaign(
        "files of nvprof, nsys, ncu, CUTLASS and chrome traces: read, explained, drawn", 10_000,
        2_500, _of_cases(fuzz_texts.profiles),
    ),
    "archives": Campaign(
        "tar and zip files with members `../x`, links, devices and bombs: nothing is written "
        "elsewhere, nor more than is allowed",
        10_000, 2_500, _of_cases(fuzz_texts.archives),
    ),
    "packed files": Campaign(
        "gzip and xz streams of up to 300 MiB of zeros, cut off or damaged, to their readers",
        1_000, 500, _of_cases(fuzz_texts.packed_files, 60.0),
    ),
    "names": Campaign(
        "names with markup, terminal escapes and formulas of spreadsheets in pages, tables and "
        "messages",
        10_000, 2_500, _of_cases(fuzz_names.names),
    ),
}  # fmt: skip


def run_part(name: str, seed: int, count: int) -> dict[str, Any]:
    """Runs a part here; returns what came of it, with its processor seconds and memory."""
    warnings.simplefilter("ignore")
    if name != "sanitized":
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    with tempfile.TemporaryDirectory(prefix="cdmpp-attack-") as folder:
        outcome = CAMPAIGNS[name].run(Path(folder), count, seed)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return {
        "outcome": outcome.to_json(),
        "cpu_s": sum(one.ru_utime + one.ru_stime for one in used),
        "mib": max(one.ru_maxrss for one in used) / 1024,
    }


def part_of(name: str, seed: int, count: int, state: Path) -> dict[str, Any]:
    """Returns what came of a part, which runs as a process of its own unless it has run before."""
    file = state / f"{name.replace(' ', '-')}-{seed}-{count}.json"
    if file.exists():
        found: dict[str, Any] = read_json(file, what="part of the attack", hint=f"remove {state}")
        return found
    command = [sys.executable, "-m", "tests.fuzz.attack", "--part", name, str(seed), str(count)]
    began = time.monotonic()
    try:
        done = subprocess.run(
            command, cwd=ROOT, capture_output=True, text=True, check=False, errors="replace",
            timeout=_PART_TIMEOUT_S,
        )  # fmt: skip
        code, said, errors = done.returncode, done.stdout, done.stderr
    except subprocess.TimeoutExpired:
        code, said, errors = -9, "", f"killed after {_PART_TIMEOUT_S} s"
    if code == 0:
        found = json.loads(said.splitlines()[-1])
    else:
        outcome = Outcome()
        outcome.crashed(f"a process ended with code {code}", errors[-1500:])
        found = {"outcome": outcome.to_json(), "cpu_s": 0.0, "mib": 0.0}
    found["wall_s"] = time.monotonic() - began
    write_json(file, found)
    return found


def code_state(tests: str) -> str:
    """Returns a digest of everything that is tested and that tests it, in the folder `tests`."""
    digest = hashlib.sha256()
    for folder in ("cdmpp", "tvm_helper", tests):
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix in (".py", ".hpp", ".cc"):
                digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def run_campaign(name: str, count: int, seed: int, state: Path) -> dict[str, Any]:
    """Returns what came of so many cases of a campaign."""
    one, outcome, facts = CAMPAIGNS[name], Outcome(), {"cpu_s": 0.0, "mib": 0.0}
    for number in range(math.ceil(count / one.part)):
        part = min(one.part, count - number * one.part)
        print(f"{name}: seed {seed + number}, {part:,} cases", flush=True)
        found = part_of(name, seed + number, part, state)
        outcome.add(Outcome.from_json(found["outcome"]))
        facts = {"cpu_s": facts["cpu_s"] + found["cpu_s"], "mib": max(facts["mib"], found["mib"])}
    return {**outcome.to_json(), **facts, "cases": outcome.total, "planned": one.count,
            "seeds": [seed, seed + math.ceil(count / one.part) - 1]}  # fmt: skip


_PAGE = """# Attacks

`{command}`, code {code}. A *crash* is anything but a value or one of the product's
own one-sentence errors, the end of the process, a wrong value that was taken, or a number that is
none in what comes out; a *hang* is a case above its bound of processor seconds; a *forbidden
event* is something that data must never cause (an import, a process, a name that is looked up).
Each part of a campaign is a process of its own with at most 6 GiB; memory is the most that any of
them took, most of it libraries.

{table}

{whats}
"""


def page(found: dict[str, dict[str, Any]], command: str, code: str) -> str:
    """Returns the counts of all campaigns as a Markdown page."""
    rows = [
        [
            name, f"{one['cases']:,}", f"{one['planned']:,}", f"{one['accepted']:,}",
            f"{sum(one['rejected'].values()):,}", str(sum(one["crashes"].values())),
            str(one["hangs"]), str(sum(one["events"].values())), f"{one['slowest_s']:.1f}",
            f"{one['mib']:.0f}", f"{one['cpu_s']:.0f}",
            "{}-{}".format(*one["seeds"]),
        ]
        for name, one in found.items()
    ]  # fmt: skip
    titles = [
        "campaign", "cases", "of a whole run", "taken", "refused", "crashes", "hangs",
        "forbidden events", "slowest CPU s", "MiB", "CPU s", "seeds",
    ]  # fmt: skip
    whats = "\n".join(f"- **{name}**: {CAMPAIGNS[name].what}." for name in found)
    text = _PAGE.format(
        command=command, code=code, table=markdown_table(titles, rows, "lrrrrrrrrrrl"), whats=whats
    )
    for name, one in found.items():
        most = list(one["rejected"].items())[:12]
        if most:
            reasons = markdown_table(["reason", "cases"], [[r, f"{n:,}"] for r, n in most], "lr")
            left = len(one["rejected"]) - len(most)
            text += f"\n## {name}\n\n{reasons}\n" + (f"\nand {left} more.\n" if left else "")
    return text


def main() -> int:
    """Runs the campaigns and writes the page; ends with 1 where one is not clean."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--most", type=int, default=1_000_000, help="cases of a campaign")
    parser.add_argument("--only", nargs="*", choices=CAMPAIGNS, default=list(CAMPAIGNS))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--state", type=Path, default=_STATE)
    parser.add_argument("--page", type=Path, help="folder for fuzz.md and fuzz.json")
    parser.add_argument("--part", nargs=3, metavar=("NAME", "SEED", "COUNT"))
    args = parser.parse_args()
    if args.part:
        name, seed, count = args.part
        print(json.dumps(run_part(name, int(seed), int(count))))
        return 0
    code = code_state("tests/fuzz")
    state = make_folder(args.state / code, what="state of the attack")
    found = {}
    for name in args.only:
        count = min(args.most, CAMPAIGNS[name].count)
        found[name] = run_campaign(name, count, args.seed, state)
        for crash, example in found[name]["examples"].items():
            print(f"{name}: {crash}\n    {example[:1000]}")
    if args.page:
        facts = {"code": code, "seed": args.seed, "most": args.most, "campaigns": found}
        command = f"python -m lab run fuzz most={args.most}"
        write_page("fuzz", page(found, command, code), facts, stamp(command), folder=args.page)
    bad = [name for name, one in found.items() if one["crashes"] or one["hangs"] or one["events"]]
    print(f"not clean: {', '.join(bad)}" if bad else f"{len(found)} campaigns, all clean")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
