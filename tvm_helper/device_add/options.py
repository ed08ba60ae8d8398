"""Options of `cdmpp device add`, and the division of its time."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from pathlib import Path

from cdmpp.devices.registry import check_lasts, find_device
from cdmpp.errors import UsageError

LEAST_MINUTES = 2.0
#: Share of the minutes after which measuring stops, and after which no comparison is started.
_MEASURE_UNTIL, _FIT_UNTIL = 0.65, 0.95
#: Average seconds of measuring per task; determines the number of tasks.
_SECONDS_PER_TASK = 0.4
_LEAST_TASKS, MOST_TASKS = 6, 4000
#: Share of the measured tasks that are test tasks, never trained on.
_TEST_SHARE = 0.2
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True)
class DeviceAddOptions:
    """Options of `cdmpp device add`, written as config.yaml into the run folder.

    Attributes:
        name: the new label.
        minutes: time limit of the whole command, including earlier runs in the folder.
        threads: threads of the label on a CPU; None = one per usable core.
        target: TVM's target, JSON or tag; None = derived from the probed device.
        dataset: folder in Tenset's layout whose programs are measured; empty = kernels of every
            kind, scheduled at random, by default, by DLight's rules or by hand.
        from_run: model to start from.
        use_known: whether `name` is a known label whose description replaces the probe.
        force: with `use_known`: whether to skip the check that this machine is the device.
        per_task: maximum number of programs per task.
        seed: seed of the choice of tasks and programs, and of the training.
    """

    name: str
    minutes: float = 10.0
    threads: int | None = None
    target: str | None = None
    dataset: str = ""
    from_run: str = "pretrained"
    use_known: bool = False
    force: bool = False
    per_task: int = 12
    seed: int = 0

    def check(self) -> None:
        """Checks the options without looking at the device.

        Raises:
            UsageError: a malformed label, a label that is known (or, with `use_known`, unknown),
                or a number out of range.
        """
        if not _NAME.fullmatch(self.name):
            raise UsageError(
                f"{self.name!r} is not a device label; expected lower-case letters, digits, dots "
                "and dashes, e.g. cdmpp device add my-laptop"
            )
        check_lasts(self.name)
        known = find_device(self.name)
        if known is not None and not self.use_known:
            same = "" if known.name == self.name else f" (as {known.name})"
            raise UsageError(
                f"{self.name!r} is already described{same}; choose another label, or add --spec "
                f"if this machine is that device: cdmpp device show {known.name}"
            )
        if known is None and self.use_known:
            raise UsageError(
                f"--spec needs a known device, got {self.name!r}; see "
                "cdmpp device list, or leave --spec out"
            )
        if not LEAST_MINUTES <= self.minutes < math.inf:
            raise UsageError(
                f"--minutes is {self.minutes:g}, expected at least {LEAST_MINUTES:g}, the time "
                "to measure a few tasks"
            )
        for name in ("per_task", "threads"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise UsageError(f"--{name.replace('_', '-')} is {value}, expected at least 1")

    @property
    def measure_until_s(self) -> float:
        """Seconds after the start at which measuring stops."""
        return 60.0 * _MEASURE_UNTIL * self.minutes

    @property
    def fit_until_s(self) -> float:
        """Seconds after the start from which no comparison is started."""
        return 60.0 * _FIT_UNTIL * self.minutes


def task_counts(measure_s: float, available: int) -> tuple[int, int]:
    """Returns the numbers of (training tasks, test tasks) that fit into `measure_s` seconds.

    Args:
        available: number of available tasks, at least 2.
    """
    wanted = min(max(round(measure_s / _SECONDS_PER_TASK), _LEAST_TASKS), MOST_TASKS)
    total = min(wanted, available)
    test = max(1, round(_TEST_SHARE * total))
    return total - test, test


def run_folder(options: DeviceAddOptions) -> Path:
    """Returns the default folder of a label."""
    return Path("runs") / f"device-{options.name}"
