"""Splits of samples into training, validation and test parts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Real
from typing import Literal, cast, get_args

import numpy as np
from numpy.typing import NDArray

from cdmpp.datasets.autotvm.logs import operator_shape
from cdmpp.datasets.samples import ProgramArrays, Samples
from cdmpp.errors import DataError, UsageError
from cdmpp.text import counted, nearest

SplitKind = Literal["task", "network", "test-tasks", "record"]

_PARTS = ("train", "validation", "test")
#: A test part with fewer workloads gets a remark in reports: its error is not reliable.
_FEW_WORKLOADS = 5
#: Workloads are reassigned by size if a part gets less than this fraction of its share.
_LEAST_OF_SHARE = 1 / 3


@dataclass(frozen=True)
class Split:
    """Three disjoint parts that together are all samples.

    Attributes:
        kind: `task`, `network`, `test-tasks` or `record`.
        train: int64, sorted sample indices for training.
        validation: int64, sorted sample indices for early stopping and model selection.
        test: int64, sorted sample indices for the final evaluation.
        description: one sentence for reports.
        leaks: whether samples of one task are in several parts.
        seed: seed of the draw.
        test_networks: networks held out for the test part (`network` and `test-tasks`).
        validation_networks: networks held out for the validation part (`network` only).
    """

    kind: SplitKind
    train: NDArray[np.int64]
    validation: NDArray[np.int64]
    test: NDArray[np.int64]
    description: str
    leaks: bool
    seed: int
    test_networks: tuple[str, ...] = ()
    validation_networks: tuple[str, ...] = ()


def split(
    samples: Samples,
    kind: SplitKind,
    *,
    seed: int,
    fractions: tuple[float, float, float] = (0.7, 0.1, 0.2),
    test_networks: Iterable[str] | None = None,
) -> Split:
    """Splits samples into training, validation and test parts.

    - `task`: a workload is in one part only, on all devices and for all targets.
    - `network`: whole networks are held out, with all their batch sizes and resolutions. A task of
      a training network is a training task, even if other networks have it too; a task of a
      validation network is not a test task. Tasks in no network are training tasks.
    - `test-tasks`, as in the results of Tenset and TLP: every task of the named networks, at
      exactly these shapes, is a test task, even if other networks have it too. The other workloads
      are drawn into the training and validation parts.
    - `record`: programs are drawn one by one, so all parts share tasks ("within-task"). It measures
      interpolation, and leaks.

    Each workload, network or program is drawn by a hash of its name and the seed, so that the
    fractions hold on average (for `network`, as numbers of networks) and an additional device moves
    no workload. If a part of a `task` split gets less than a third of its share of the samples, the
    workloads are assigned by their numbers of samples instead.

    Args:
        fractions: shares of (train, validation, test), positive sum; scaled to sum 1.
        test_networks: full names of the networks to hold out; for `network` also names before the
            comma, None = drawn.

    Raises:
        UsageError: the kind or a network is unknown, or the fractions are invalid.
        DataError: a part with a positive fraction is empty, or there are too few networks.
    """
    if kind not in get_args(SplitKind):
        raise UsageError(
            f"unknown split {kind!r}, expected one of {', '.join(get_args(SplitKind))}"
        )
    given = list(fractions) if isinstance(fractions, Iterable) else []
    if (
        not all(isinstance(one, Real) for one in given)
        or len(given) != 3
        or min(given) < 0
        or not 0 < sum(given) < float("inf")
    ):
        raise UsageError(f"fractions are {fractions}, expected three numbers >= 0, not all zero")
    if test_networks is not None and kind not in ("network", "test-tasks"):
        raise UsageError("test networks can only be given for the split by network")
    shares = np.cumsum(fractions) / sum(fractions)
    programs = samples.programs
    held_out: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    if kind == "record":
        part_of_program = _draw(programs.program_id.tolist(), seed, shares)
        part = part_of_program[samples.program]
    else:
        if kind == "task":
            groups = [workload_of(task) for task in programs.tasks]
            _check_count(groups, samples.task_id, fractions)
            part_of_task = _by_workload(groups, samples.task_id, seed, fractions)
        elif kind == "test-tasks":
            present = np.unique(samples.task_id)
            held_out = ((), _present_networks(programs, present, test_networks or ()))
            part_of_task = _by_test_tasks(programs, held_out[1], seed, fractions)
        else:
            present = np.unique(samples.task_id)
            held_out = _hold_out(programs, present, seed, fractions, test_networks)
            part_of_task = _by_network(programs, *held_out)
        part = part_of_task[samples.task_id]
    parts = [np.flatnonzero(part == number).astype(np.int64) for number in range(3)]
    for name, indices, fraction in zip(_PARTS, parts, fractions, strict=True):
        if fraction > 0 and len(indices) == 0:
            raise DataError(
                f"the {name} part of the split by {kind} is empty "
                f"({counted(len(samples), 'sample')}, "
                f"seed {seed}); use more data, another seed or other fractions"
            )
    validation_networks, named = held_out
    return Split(
        kind=kind,
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        description=_describe(samples, kind, parts, named, seed),
        leaks=kind == "record",
        seed=seed,
        test_networks=named,
        validation_networks=validation_networks,
    )


def network_family(network: str) -> str:
    """Returns a network's name without input shapes: `resnet_50` of `resnet_50,[(1,3,224,224)]`."""
    return network.split(",", 1)[0]


def plain_network(network: str) -> str:
    """Returns a network's full name without spaces."""
    return network.replace(" ", "")


def workload_of(task: str) -> str:
    """Returns the workload of a task `"<workload key>|<target kind>"`, which must stay in one part.

    The workload is the workload key; for AutoTVM, operator and shapes, because several templates
    compute the same operator.
    """
    key = str(task).rsplit("|", 1)[0]
    return operator_shape(key) or key


def _by_workload(
    groups: list[str],
    task_id: NDArray[np.int64],
    seed: int,
    fractions: tuple[float, float, float],
) -> NDArray[np.int64]:
    """Returns the part of every task; tasks of one group are in the same part.

    Groups are drawn one by one. If a part gets less than a third of its share of the samples, the
    groups are assigned from the largest to the smallest (groups of similar size, within a factor of
    four, in the order of their draws): each goes to the part that lacks most samples, and every
    part gets at least one.

    Args:
        task_id: int64 [N], task of each sample.
    """
    wanted = np.asarray(fractions) / sum(fractions)
    part = _draw(groups, seed, np.cumsum(wanted))
    size: dict[str, int] = {}
    for task, count in zip(*np.unique(task_id, return_counts=True), strict=True):
        size[groups[task]] = size.get(groups[task], 0) + int(count)
    drawn = np.bincount(part[task_id], minlength=3)
    if np.all(drawn >= _LEAST_OF_SHARE * wanted * len(task_id)):
        return part
    order = sorted(
        size, key=lambda name: (-(size[name].bit_length() // 2), uniform_draw(name, seed))
    )
    lacks = wanted * len(task_id)
    place: dict[str, int] = {}
    for number, name in enumerate(order):
        empty = (wanted > 0) & ~np.isin(np.arange(3), list(place.values()))
        may_get = empty if empty.sum() == len(order) - number else wanted > 0
        place[name] = int(np.argmax(np.where(may_get, lacks, -np.inf)))
        lacks[place[name]] -= size[name]
    return np.array([place.get(name, 0) for name in groups], dtype=np.int64)


def _check_count(
    groups: list[str], task_id: NDArray[np.int64], fractions: tuple[float, float, float]
) -> None:
    found = len({groups[task] for task in np.unique(task_id)})
    needed = np.count_nonzero(fractions)
    if found < needed:
        raise DataError(
            f"a split by task needs tasks of at least {needed} workloads, found {found}; measure "
            "more tasks, or use the split by record, whose parts share tasks"
        )


def uniform_draw(name: str, seed: int) -> float:
    """Returns a pseudo-random number in [0, 1) from a hash of the name and the seed."""
    digest = hashlib.sha256(f"{seed}|{name}".encode()).digest()
    return float(int.from_bytes(digest[:7], "big") / (1 << 56))


def _draw(names: Iterable[str], seed: int, shares: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the part (0, 1, 2) of every name."""
    drawn = np.array([uniform_draw(str(name), seed) for name in names], dtype=np.float64)
    part = np.searchsorted(shares[:2], drawn, side="right")
    return cast("NDArray[np.int64]", part.astype(np.int64))


def _families(programs: ProgramArrays, task: int) -> set[str]:
    return {network_family(name) for name, _ in programs.networks[task]}


def _hold_out(
    programs: ProgramArrays,
    present: NDArray[np.int64],
    seed: int,
    fractions: tuple[float, float, float],
    named: Iterable[str] | None,
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Returns the (validation, test) families of networks."""
    families = sorted(set().union(*(_families(programs, int(task)) for task in present)))
    if len(families) < 3:
        raise DataError(
            f"a split by network needs at least 3 networks, found {len(families)}: "
            f"{', '.join(families) or 'none'}; use the split by task"
        )
    order = sorted(families, key=lambda family: uniform_draw(family, seed))
    if named is None:
        count = _count(len(families), fractions[2] / sum(fractions))
        test = order[:count]
    else:
        test = sorted({network_family(_known_family(name, families)) for name in named})
    rest = [family for family in order if family not in test]
    validation = rest[: _count(len(families), fractions[1] / sum(fractions))]
    return tuple(sorted(validation)), tuple(sorted(test))


def _count(total: int, fraction: float) -> int:
    return 0 if fraction == 0 else max(1, round(total * fraction))


def _known_family(name: str, families: list[str]) -> str:
    family = network_family(name)
    if family in families:
        return family
    raise UsageError(
        f"unknown network {name!r}{nearest(family, families)}; networks found: "
        f"{', '.join(families)}"
    )


def _by_network(
    programs: ProgramArrays, validation: tuple[str, ...], test: tuple[str, ...]
) -> NDArray[np.int64]:
    """Returns the part of every task: training if a training network has it, else validation if a
    validation network has it, else test.
    """
    parts = np.zeros(len(programs.tasks), dtype=np.int64)
    for task in range(len(parts)):
        families = _families(programs, task)
        if not families or families - set(validation) - set(test):
            continue
        parts[task] = 1 if families & set(validation) else 2
    return parts


def _present_networks(
    programs: ProgramArrays, present: NDArray[np.int64], named: Iterable[str]
) -> tuple[str, ...]:
    """Returns the named networks that have a measured task."""
    there = {plain_network(name) for task in present for name, _ in programs.networks[task]}
    found = tuple(name for name in named if plain_network(name) in there)
    if not found:
        raise DataError(
            f"no task of the test networks {', '.join(named) or '(none named)'} is measured; "
            f"networks found: {', '.join(sorted(there)) or 'none'}"
        )
    return found


def _by_test_tasks(
    programs: ProgramArrays,
    test_networks: tuple[str, ...],
    seed: int,
    fractions: tuple[float, float, float],
) -> NDArray[np.int64]:
    """Returns the part of every task: test if a test network has its workload, else drawn."""
    wanted = {plain_network(name) for name in test_networks}
    groups = [workload_of(task) for task in programs.tasks]
    tested = {
        group
        for group, networks in zip(groups, programs.networks, strict=True)
        if any(plain_network(name) in wanted for name, _ in networks)
    }
    rest = fractions[0] + fractions[1]
    if rest == 0:
        raise UsageError(
            f"fractions are {fractions}, expected a share of training or validation for the tasks "
            "of other networks"
        )
    drawn = _draw(groups, seed, np.array([fractions[0] / rest, 1.0, 1.0]))
    return np.where([group in tested for group in groups], 2, drawn).astype(np.int64)


def _describe(
    samples: Samples,
    kind: SplitKind,
    parts: list[NDArray[np.int64]],
    test_networks: tuple[str, ...],
    seed: int,
) -> str:
    sizes = ", ".join(
        f"{name} {counted(len(indices), 'sample')} of "
        f"{counted(len(np.unique(samples.task_id[indices])), 'task')}"
        for name, indices in zip(_PARTS, parts, strict=True)
    )
    how: Callable[[], str] = {
        "task": lambda: "by task: no task is in two parts",
        "network": lambda: (
            f"by network: {', '.join(test_networks)} held out, shared tasks not tested"
        ),
        "test-tasks": lambda: f"every task of {', '.join(test_networks)} is tested",
        "record": lambda: "within-task (leaking): programs of one task are in all parts",
    }[kind]
    return f"{how()} (seed {seed}): {sizes}{_warning(samples, kind, parts)}"


def _warning(samples: Samples, kind: SplitKind, parts: list[NDArray[np.int64]]) -> str:
    """Returns a remark if the test part has too few workloads for a reliable result."""
    tasks = [np.unique(samples.task_id[indices]) for indices in (np.concatenate(parts), parts[2])]
    every, tested = (len({workload_of(samples.programs.tasks[t]) for t in some}) for some in tasks)
    if kind != "task" or not 0 < tested < _FEW_WORKLOADS:
        return ""
    return f"; only {tested} of {every} operator shapes are tested, too few for a reliable result"
