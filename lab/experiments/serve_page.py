"""docs/results/serve.md from what the attack and the load wrote.

`python -m lab.experiments.serve_page docs/results` (`make bench-serve` ends with it).
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from cdmpp.files.atomic import read_json
from cdmpp.report.stamp import write_page
from cdmpp.text import markdown_table

_HINT = "run `make bench-serve`"


_LOAD = """# A server under load, and under attack

`make bench-serve` (`lab/experiments/serve_load.py`, `serve_attack.py`), over the loopback
interface, shipped model, one thread a process. {cores} cores ({processor}), which clients and
server shared with whatever else ran: load average {average:.0f} before the load began. Times of
the clock hold for such a machine only; processor seconds, and ratios to the local line of the
same run, hold better.

## Load

{seconds:g} s each; leaf tables of shipped records to `/v1/rank`. *Local* is `predict` of the
same batch in another process just before, while the
server idles. *CPU ms* is the server's, for a program. Memory is the
server's at the start, after each quarter, and at the end.

{table}

Overload (64 clients, room for 4 requests): {overload}; one client afterwards: {afterwards}."""
_ATTACK = """## Attack

{requests:,} fuzzed requests (seed {seed}), {wrong} answers that must not be (a 500, a
traceback, none at all to a whole request). 0 = the connection was closed. A program that cannot
be read has a 200 with its reason.

{table}

Beside {connections} connections that say a header or a body byte and no more, the slowest
honest answer took {slowest_answer_beside_s} s, and all of them were closed after
{all_closed_after_s} s. Bodies of one long text: {bodies}. {clients} clients that went away amid
their requests changed nothing. Reading processes lost: {lost:.0f}. Memory of the server:
{before:.0f} MiB before, {after:.0f} after the fuzzed requests, {end:.0f} at the end."""


def page(load: dict[str, Any], attack: dict[str, Any]) -> str:
    """Returns the page."""
    over = load["overload"]
    first = _LOAD.format(
        **{name: load[name] for name in ("cores", "seconds")}, table=_load_table(load),
        processor=load["stamp"]["machine"]["processor"], average=load["load_average"],
        overload=_statuses(over["statuses"]), afterwards=_statuses(over["statuses_afterwards"]),
    )  # fmt: skip
    bodies = "; ".join(
        f"{one['bytes'] / 2**20:.0f} MiB: {one['answer']} in {one['seconds']} s"
        for one in attack["large_bodies"]
    )
    second = _ATTACK.format(
        **attack["slow_connections"], **attack["memory_mib"], bodies=bodies,
        **{name: attack[name] for name in ("requests", "seed")}, table=_attack_table(attack),
        wrong=len(attack["wrong"]), clients=attack["clients_killed"]["clients"],
        lost=attack["readers_lost"],
    )  # fmt: skip
    return f"{first}\n\n{second}\n"


def _attack_table(attack: dict[str, Any]) -> str:
    rows = [
        [kind, _statuses(found), f"{attack['slowest_s'][kind]:.2f}"]
        for kind, found in attack["statuses"].items()
    ]
    return markdown_table(["requests", "answers", "slowest s"], rows, "llr")


def _load_table(load: dict[str, Any]) -> str:
    rows = []
    for one in load["loads"]:
        local = one["local"]
        rows.append([
            str(one["clients"]), str(one["programs"]), f"{one['per_s']:.0f}",
            f"{one['per_s'] / local['per_s']:.2f}", f"{one['cpu_ms']:.3f}",
            f"{local['cpu_ms']:.3f}", f"{1e3 * one['p50_s']:.0f}", f"{1e3 * one['p99_s']:.0f}",
            _statuses(one["statuses"]), " ".join(f"{mib:.0f}" for mib in one["memory_mib"]),
        ])  # fmt: skip
    return markdown_table(
        ["clients", "programs a request", "programs/s", "of local", "CPU ms", "local CPU ms",
         "p50 ms", "p99 ms", "answers", "memory MiB"], rows, "rrrrrrrrll",
    )  # fmt: skip


def _statuses(found: dict[str, int]) -> str:
    return ", ".join(f"{count:,} x {status}" for status, count in found.items())


def main() -> None:
    """Writes the page into the folder that has the two files."""
    folder = Path(sys.argv[1])
    load = read_json(folder / "serve-load.json", what="load", hint=_HINT)
    attack = read_json(folder / "serve-attack.json", what="attack", hint=_HINT)
    write_page(folder, "serve", page(load, attack), {}, load["stamp"])


if __name__ == "__main__":
    main()
