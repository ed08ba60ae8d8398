"""What is generated and measured: the options of `cdmpp networks generate` and `measure`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cdmpp.errors import UsageError
from cdmpp.networks.architectures.generator import SearchSpace
from cdmpp.networks.campaign.labels import NetworkTiming
from cdmpp.networks.graph.execution import MODES, Mode


@dataclass(frozen=True)
class NetworksConfig:
    """Networks and how they are measured; the defaults are the published data set's.

    Attributes:
        architectures: how many are drawn.
        seed: of the drawing.
        space: what is drawn.
        device: label of the device that measures; None = to be given on the command line.
        force: whether its description need not be that of this machine.
        modes: `infer`, `train` or both.
        timing: how long a sample is timed.
        again: samples that are measured a second time at the end (more than there are = all), by
            which the manifest tells how well measurements repeat. Their label is of both times.
        most_memory_bytes: by how much the process of a sample may grow; a sample that needs more
            counts as out of memory. None = no limit but the machine's.
        timeout_s: seconds after which a sample is given up.
        stop_after_failures: crashes or time-outs in a row that end the campaign; 0 = never.
    """

    architectures: int = 7202
    seed: int = 0
    space: SearchSpace = field(default_factory=SearchSpace)
    device: str | None = None
    force: bool = False
    modes: tuple[Mode, ...] = MODES
    timing: NetworkTiming = field(default_factory=NetworkTiming)
    again: int = 0
    most_memory_bytes: int | None = None
    timeout_s: float = 300.0
    stop_after_failures: int = 20

    def check(self) -> None:
        """Raises a UsageError for values that make no sense."""
        if self.architectures < 1:
            raise UsageError(f"architectures is {self.architectures}, expected at least 1")
        for name in ("seed", "again", "stop_after_failures"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} is {getattr(self, name)}, expected 0 or more")
        if not self.modes or len(set(self.modes)) != len(self.modes):
            raise UsageError(f"modes is {list(self.modes)}, expected infer, train or both")
        if self.most_memory_bytes is not None and self.most_memory_bytes < 1:
            raise UsageError(
                f"most_memory_bytes is {self.most_memory_bytes}, expected at least 1 or null"
            )
        if not (math.isfinite(self.timeout_s) and self.timeout_s > 0):
            raise UsageError(f"timeout_s is {self.timeout_s}, expected above 0")
        self.space.check()
        self.timing.check()
