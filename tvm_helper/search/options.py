"""Options of a search: one dataclass, one YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdmpp.devices.registry import THIS_CPU
from cdmpp.errors import UsageError
from tvm_helper.measure.options import TrialOptions

SearchCostModel = Literal["cdmpp", "xgb", "random"]
#: Maximum of the default number of trials per round.
MOST_PER_ROUND = 16


@dataclass(frozen=True)
class SearchOptions(TrialOptions):
    """Options of a search.

    Attributes:
        task: tasks: names (`measure --list-tasks`) or Python files with programs.
        network: an ONNX or torch.export file, instead of tasks.
        cost_model: model that chooses the candidates: `cdmpp`, TVM's `xgb`, or `random`.
        model: run folder or `pretrained`: the trained model of `cdmpp`, which also predicts the
            latencies in the table before the search.
        finetune_every: `cdmpp`: number of measured programs between two tunings; 0 = frozen.
        neighbours: `cdmpp`: whether residuals on a task's measured programs correct predictions for
            its other candidates.
        safety_net: `cdmpp`: whether TVM's XGB model runs too.
        trials: total number of measured programs, including failed ones.
        trials_per_round: number of programs of a task per round; 0 = enough for two rounds per
            task, at most 16.
        verify: number of candidates to build per run program; the machine-code model of `model`
            chooses those to run. 1 = run all candidates.
        minutes: time limit of the search in this run, in minutes; 0 = unlimited.
        stop_early: whether the search follows its own advice to stop.
        stop_gain: gain below which a task counts as settled (0.02 = 2 %).
        population: number of candidates evolved per round.
        search_threads: threads that draw and score candidates; 0 = one per usable CPU.
        final_timeout_s: time limit of compiling the final module, in seconds.
        stop_after_failures: consecutive failures of one kind after which the search stops; 0 =
            never.
        final_repeats: number of timings of the final module, alternating with the untuned one.
    """

    task: tuple[str, ...] = ()
    network: str | None = None
    cost_model: SearchCostModel = "cdmpp"
    model: str = "pretrained"
    finetune_every: int = 0
    neighbours: bool = True
    safety_net: bool = True
    trials: int = 64
    trials_per_round: int = 0
    verify: int = 1
    minutes: float = 0.0
    stop_early: bool = False
    stop_gain: float = 0.02
    population: int = 512
    search_threads: int = 0
    final_timeout_s: float = 900.0
    stop_after_failures: int = 50
    final_repeats: int = 10

    def check(self) -> None:
        """Checks the options without looking at the device.

        Raises:
            UsageError: no device, nothing to search, or a number out of range.
        """
        if not self.device:
            raise UsageError(
                f"no device label: give --device {THIS_CPU} to search on this CPU, or a label of "
                "`cdmpp device list`"
            )
        self.check_trials("final_timeout_s", network=self.network)
        if bool(self.task) == (self.network is not None):
            got = "got both" if self.task else "got neither"
            raise UsageError(
                f"nothing to search: {got}; give --task KIND:SIZE=N,... (cdmpp measure "
                "--list-tasks) or a Python file, or --network FILE"
            )
        for name in ("trials", "verify", "population", "final_repeats"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("finetune_every", "trials_per_round", "search_threads", "minutes", "seed"):
            if not getattr(self, name) >= 0:
                raise UsageError(f"{name} must be 0 or more, got {getattr(self, name)}")
        if not 0 < self.stop_gain < 1:
            raise UsageError(
                f"stop_gain must be between 0 and 1 (0.02 = 2 %), got {self.stop_gain}"
            )
        if self.finetune_every and self.cost_model != "cdmpp":
            raise UsageError(
                f"finetune_every needs the cost model cdmpp, got {self.cost_model}; leave it out "
                "or use --cost-model cdmpp"
            )

    def round_size(self, tasks: int) -> int:
        """Returns the number of programs of a task per round."""
        return self.trials_per_round or max(1, min(MOST_PER_ROUND, self.trials // (2 * tasks)))
