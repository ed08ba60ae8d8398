"""Options of `cdmpp networks generate` and `cdmpp networks measure`."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from cdmpp.errors import UsageError
from cdmpp.networks.architectures.generator import SearchSpace
from cdmpp.networks.campaign.labels import NetworkTiming
from cdmpp.networks.graph.execution import MODES, Mode


@dataclass(frozen=True)
class NetworksConfig:
    """Options of generating and measuring networks; defaults are those of the published data set.

    Attributes:
        architectures: number of architectures.
        seed: seed of the drawing.
        space: the search space.
        device: label of this machine's device; None = it must be given on the command line.
        force: whether to skip the check that the device's description fits this machine.
        modes: `infer`, `train` or both.
        timing: options of timing a sample.
        again: number of samples (at most all) that are measured again at the end, for the
            repeatability in the manifest. Their labels use both measurements.
        most_memory_bytes: maximum growth of a sample's process; a sample that needs more is out of
            memory. None = no limit.
        timeout_s: maximum seconds of each part of a sample (memory, time).
        stop_after_failures: number of consecutive crashes or time-outs that end the campaign;
            0 = no limit.
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
        """Checks the values.

        Raises:
            UsageError: an invalid value.
        """
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
