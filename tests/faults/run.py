"""`python -m lab run faults`: commands that are killed, ended, starved of disk, robbed of their
folder or the time, or run twice at once, onto runs/results/faults.md.

    python -m tests.faults.run --times 10 --kills 50 --page runs/results

Every fault has a seed: its command, kind, number and `--seed`. It is survived when the command says
one sentence (no traceback), ends with one of its exit codes and leaves no process behind, and the
same command, undisturbed, then ends well with what a run has that nothing befell. What came of
every fault is kept in `--state` until the code changes: the same command with more `--times` adds
to it, and one that was stopped goes on.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from cdmpp.files.atomic import make_folder
from cdmpp.files.journal import LineJournal
from cdmpp.text import markdown_table
from lab.pages import write_page
from lab.stamp import stamp
from tests.faults.commands import COMMANDS, places
from tests.faults.kinds import KINDS, why_not
from tests.faults.trial import Trial
from tests.fuzz.attack import code_state
from tests.paths import ROOT

_STATE = ROOT / "cache" / "faults"
#: Faults of measured programs that tests make in every run of the suite, by file.
TESTS = {
    "tests/tvm_helper/measure/test_measure_tvm.py": "programs that abort or hang",
    "tests/tvm_helper/search/test_search_tvm.py": "the same in a search",
    "tests/tvm_helper/measure/test_campaign.py":
        "programs that are killed, end their process, run for ever or find the disk full",
    "tests/processes/test_worker.py":
        "programs that leave processes behind, also when their worker crashes or its parent is "
        "killed",
    "tests/serve/test_serve.py": "programs that kill or stop the reader or explainer of a server",
}  # fmt: skip


def run(times: Mapping[str, int], seed: int, names: Sequence[str], state: Path) -> None:
    """Makes faults of every command, so many of each kind, without those that were made before."""
    with (
        LineJournal(state) as journal,
        tempfile.TemporaryDirectory(prefix="cdmpp-faults-") as place,
        places(Path(place)) as there,
    ):
        done = {one["seed"] for one in journal.entries}
        for name in names:
            every = {
                f"{name}, {kind}, {number}, {seed}": kind
                for number in range(max(times.values(), default=0))
                for kind, wanted_times in times.items()
                if number < wanted_times
            }
            wanted = {key: kind for key, kind in every.items() if key not in done}
            if wanted:
                _run_command(name, wanted, Path(place), there, journal)


def _run_command(
    name: str, wanted: Mapping[str, str], place: Path, there: Mapping[str, str],
    journal: LineJournal,
) -> None:  # fmt: skip
    folder = make_folder(place / name.replace(" ", "-"), what="output")
    trial = Trial(COMMANDS[name], folder, there)
    print(f"{name}: {trial.usual_s:.1f} s undisturbed, {len(wanted)} faults", flush=True)
    for key, kind in wanted.items():
        fault = trial.survive(KINDS[kind], key)
        entry = {"command": name, "kind": kind, "seed": key, **fault.to_json()}
        journal.append(entry)
        print(
            f"    {kind}: {fault.where}: {fault.codes}", *fault.wrong, sep="\n        ", flush=True
        )


_PAGE = """# Faults

`{command}`, code {code}: commands on small data to which something happens. *Wrong* is a traceback,
another exit code than the command's own (a signal's, where Python itself was just starting), a
process that is left 15 s later, or another result when
the same command then runs undisturbed; temporary files of either run that are still there count
too. Moments and sizes are drawn from seeds: the command, the kind, the number and {seed}.

## By kind

{sums}

## By command

{table}

## Kinds

{kinds}

## What is the same afterwards

{compared}

## What the suite does besides

{tests}
"""


def page(entries: Sequence[Mapping[str, Any]], command: str, code: str, seed: int) -> str:
    """Returns what came of all faults as Markdown."""
    rows = []
    for name in COMMANDS:
        for kind in KINDS:
            found = [one for one in entries if (one["command"], one["kind"]) == (name, kind)]
            if found:
                codes = Counter(code for one in found for code in one["codes"])
                wrong = sum(bool(one["wrong"]) for one in found)
                said = ", ".join(f"{count} x {code}" for code, count in sorted(codes.items()))
                rows.append([name, kind, str(len(found)), str(wrong), said])
    kinds = [
        [kind, str(len(found)), str(sum(bool(one["wrong"]) for one in found))]
        for kind in KINDS
        if (found := [one for one in entries if one["kind"] == kind])
    ]
    wrongs = [f"- {one['command']}, {one['where']}: {'; '.join(one['wrong'])}"
              for one in entries if one["wrong"]]  # fmt: skip
    titles = ["command", "what happens", "times", "wrong", "exit codes"]
    return _PAGE.format(
        command=command, code=code, seed=seed,
        sums=markdown_table(["what happens", "times", "wrong"], kinds, "lrr"),
        table="\n\n".join([markdown_table(titles, rows, "llrrl"), "\n".join(wrongs)]).rstrip(),
        kinds="\n".join(f"- **{kind}**: {befall.__doc__}" for kind, befall in KINDS.items()),
        compared="\n".join(f"- **{name}**: {one.compared}." for name, one in COMMANDS.items()),
        tests="\n".join(f"- `{path}`: {what}." for path, what in TESTS.items()),
    )  # fmt: skip


def main() -> int:
    """Makes the faults and writes the page; ends with 1 where one was not survived."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=10, help="faults of each kind")
    parser.add_argument("--kills", type=int, help="of kind `killed`, where that is not --times")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="*", choices=COMMANDS, default=list(COMMANDS))
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    parser.add_argument("--state", type=Path, default=_STATE)
    parser.add_argument("--page", type=Path, help="folder for faults.md and faults.json")
    args = parser.parse_args()
    # Where this runs in the background the shell has it ignored, and the commands would ignore it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    reasons = {kind: why for kind in args.kinds if (why := why_not(kind))}
    for kind, why in reasons.items():
        print(f"{kind}: left out, {why}")
    code = code_state("tests/faults")
    state = make_folder(args.state, what="faults") / f"{code}.jsonl"
    times = {kind: args.times for kind in args.kinds if kind not in reasons}
    if args.kills is not None and "killed" in times:
        times["killed"] = args.kills
    run(times, args.seed, args.only, state)
    with LineJournal(state) as journal:
        entries = journal.entries
    if args.page:
        kills = "" if args.kills is None else f" kills={args.kills}"
        command = f"python -m lab run faults times={args.times}{kills}"
        facts = {"code": code, "left_out": reasons, "faults": entries}
        text = page(entries, command, code, args.seed)
        write_page("faults", text, facts, stamp(command), folder=args.page)
    wrong = [one for one in entries if one["wrong"]]
    print(f"{len(entries)} faults, {len(wrong)} not survived")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
