"""What a search is asked to do: one dataclass, one YAML file."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from cdmpp.devices.registry import THIS_CPU
from cdmpp.errors import UsageError
from tvm_helper.measure.options import TrialOptions

SearchCostModel = Literal["cdmpp", "xgb", "random"]
#: Trials of a round where there are enough of them for that.
MOST_PER_ROUND = 16


@dataclass(frozen=True)
class SearchOptions(TrialOptions):
    """A search.

    Attributes:
        task: tasks: names (`measure --list-tasks`) or Python files with programs.
        network: an ONNX or torch.export file, instead of tasks.
        cost_model: what chooses the candidates: ours, TVM's XGB model, or chance.
        model: run folder or `pretrained`: the trained model of `cdmpp`, which also predicts the
            latencies of the table before the search.
        finetune_every: `cdmpp`: programs after which the weights are tuned; 0 = frozen.
        neighbours: `cdmpp`: whether what the model missed on a task's measured programs corrects
            what it says of the task's other candidates.
        safety_net: `cdmpp`: whether TVM's XGB model runs along.
        trials: measured programs in all, failed ones included.
        trials_per_round: programs that a task gets at a time; 0 = so many that every task gets two
            rounds, at most 16.
        verify: candidates that are built for each that is run: of a round, those that the model of
            machine code of `model` predicts to be the fastest. 1 = all that are built are run.
        minutes: wall time of the search in this run; 0 = no bound.
        stop_early: whether the search follows its own advice to stop.
        stop_gain: gain below which a task counts as settled (0.02 = 2 %).
        population: candidates that are evolved for a round.
        search_threads: threads that draw and score candidates; 0 = the CPUs that may be used.
        final_timeout_s: seconds in which the final module has to be compiled.
        stop_after_failures: consecutive failures of one kind after which the search stops; 0 =
            never.
        final_repeats: timings of the final module, in turn with those of the untuned one.
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
        """Checks what can be checked without a device.

        Raises:
            UsageError: no device, nothing to search, or a number that makes no sense.
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
        """Returns the programs that a task gets at a time."""
        return self.trials_per_round or max(1, min(MOST_PER_ROUND, self.trials // (2 * tasks)))
