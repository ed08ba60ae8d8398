"""What a measuring campaign is asked to do: one dataclass, one YAML file (`configs/measure`)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from cdmpp.config import to_dict
from cdmpp.devices.registry import check_lasts
from cdmpp.errors import UsageError
from cdmpp.machine import allowed_cpus
from cdmpp.networks.onnx_files.sizes import InputSizes
from cdmpp.networks.shape_text import parse_input_shapes
from cdmpp.text import counted

#: How programs get their schedules: random ones of MetaSchedule's space, the loops as relax leaves
#: them, DLight's rules, and schedules as people write them.
Way = Literal["random", "default", "dlight", "hand"]


@dataclass(frozen=True)
class TimingOptions:
    """When a program has been timed enough.

    Attributes:
        min_repeats: timings that every program gets, unless the budget ends before.
        max_repeats: timings after which it ends.
        min_repeat_s: a timing runs the program as often as fits this, and divides.
        spread: relative standard error of the mean at which it ends (0.02 = 2 %).
        budget_s: seconds of timing after which it ends.
        flush_cache: whether caches are emptied before every single run (CPUs; then a timing is one
            run, as in Tenset's CPU records).
        keep: which timings are a program's costs: all, or the least alone.
        clock: `wall`, or `cpu`: the CPU time of a program of one thread, for a machine that has
            other work.
    """

    min_repeats: int = 3
    max_repeats: int = 30
    min_repeat_s: float = 0.02
    spread: float = 0.02
    budget_s: float = 3.0
    flush_cache: bool = False
    keep: Literal["all", "minimum"] = "all"
    clock: Literal["wall", "cpu"] = "wall"

    def to_json(self) -> dict[str, Any]:
        """Returns what a campaign's file says of it: as in older ones where it is as in these."""
        values = to_dict(self)
        for name, default in (("keep", "all"), ("clock", "wall")):
            if values[name] == default:
                del values[name]
        return values


@dataclass(frozen=True)
class TrialOptions:
    """How programs are built and timed, in a campaign or in a search.

    Attributes:
        device: label of what measures.
        target: TVM's target as JSON or as a tag; None = it follows from the device's numbers.
        threads: threads a program may use on a CPU; None = those of the label.
        seed: what is drawn follows from it.
        force: whether a label whose description is not that of this machine is measured under.
        machine_code: whether the columns of what the compiler made of the programs are kept too.
        build_jobs: processes that build. Nothing is built while a program is timed.
        build_timeout_s: seconds in which a program has to be built.
        run_timeout_s: seconds in which it has to be timed.
        queue_timeout_s: seconds in which a worker or a remote device has to be free. It is never
            part of the other ones.
        timing: when a program has been timed enough.
        network_batch: size of every first axis that an ONNX network leaves open.
        network_input: whole shapes of its open inputs, e.g. `images=1x3x224x224`.
    """

    device: str = ""
    target: str | None = None
    threads: int | None = None
    seed: int = 0
    force: bool = False
    machine_code: bool = False
    build_jobs: int = 1
    build_timeout_s: float = 60.0
    run_timeout_s: float = 60.0
    queue_timeout_s: float = 900.0
    timing: TimingOptions = field(default_factory=TimingOptions)
    network_batch: int | None = None
    network_input: tuple[str, ...] = ()

    @property
    def network_sizes(self) -> InputSizes | None:
        """What is told of a network's inputs; None = nothing."""
        if self.network_batch is None and not self.network_input:
            return None
        return InputSizes(parse_input_shapes(self.network_input), self.network_batch)

    def check_trials(self, *timeouts: str, network: object) -> None:
        """Checks these options and the named time-outs.

        Args:
            network: files of networks; false = none.

        Raises:
            UsageError: no device, sizes without a network, or a number that makes no sense.
        """
        if self.network_sizes is not None and not network:
            raise UsageError(
                "--batch and --input are sizes of a network: got none; add --network FILE.onnx, or "
                "leave them out"
            )
        if not self.device:
            raise UsageError(
                "no device label: give --device LABEL, a label of `cdmpp device list` or a new "
                "one with --target and --threads"
            )
        if self.build_jobs < 1:
            raise UsageError(f"build_jobs must be at least 1, got {self.build_jobs}")
        for name in ("build_timeout_s", "run_timeout_s", "queue_timeout_s", *timeouts):
            if not getattr(self, name) > 0:
                raise UsageError(f"{name} must be more than 0 seconds, got {getattr(self, name)}")
        timing = self.timing
        if not 1 <= timing.min_repeats <= timing.max_repeats:
            raise UsageError(
                "expected 1 <= timing.min_repeats <= timing.max_repeats, got "
                f"{timing.min_repeats} and {timing.max_repeats}"
            )


@dataclass(frozen=True)
class MeasureOptions(TrialOptions):
    """A campaign.

    Attributes:
        sample: tasks: names (`measure --list-tasks`) or Python files.
        sample_random: number of tasks drawn at random: kinds, sizes and types follow from the seed.
        held_out: whether they are of those that are kept for testing: no other campaign draws any.
        schedules: how programs are scheduled (`Way`); tasks take turns at them.
        replay: folders in Tenset's layout whose programs are measured.
        replay_devices: devices whose records are replayed; empty = all of the target's kind.
        network: ONNX or torch.export files whose tasks are sampled.
        tasks_of: folders of campaigns whose sampled tasks are sampled again.
        least_flops: tasks with fewer floating point operations are left out.
        most_tasks: tasks in all, drawn by a hash; 0 = no bound.
        per_task: programs of each task.
        most_programs: programs in all, evenly over the tasks; 0 = no bound.
        choose_from: schedules that are drawn for each that is kept: those that the model predicts
            to be the fastest. 1 = random ones.
        model: what chooses: a run folder, or a packaged model.
        batch: programs that are built before they are timed.
        rounds: how often the programs of a batch are timed, one after the other: what slows the
            machine for a second then does not slow all timings of a program.
        again_share: share of the programs that are built and timed once more, for the noise.
        jobs: CPUs that measure side by side, each for itself; for programs of one thread.
        draw_timeout_s: seconds in which a task's schedules have to be drawn.
        stop_after_failures: consecutive failures of one kind after which the campaign stops; 0 =
            never.
        rpc: `HOST:PORT:KEY` of TVM's RPC tracker; None = this machine.
    """

    sample: tuple[str, ...] = ()
    sample_random: int = 0
    held_out: bool = False
    schedules: tuple[Way, ...] = ("random",)
    replay: tuple[str, ...] = ()
    replay_devices: tuple[str, ...] = ()
    network: tuple[str, ...] = ()
    tasks_of: tuple[str, ...] = ()
    least_flops: float = 0.0
    most_tasks: int = 0
    per_task: int = 64
    most_programs: int = 0
    choose_from: int = 1
    model: str = "pretrained"
    batch: int = 16
    rounds: int = 1
    again_share: float = 0.0
    jobs: int = 1
    draw_timeout_s: float = 900.0
    stop_after_failures: int = 20
    rpc: str | None = None

    def check(self) -> None:
        """Checks what can be checked without a device.

        Raises:
            UsageError: no device, nothing to measure, or a number that makes no sense.
        """
        self.check_trials("draw_timeout_s", network=self.network)
        check_lasts(self.device)
        sources = (self.sample, self.sample_random, self.replay, self.network, self.tasks_of)
        if not any(sources):
            raise UsageError(
                "nothing to measure: give --sample TASK (cdmpp measure --list-tasks), "
                "--sample-random N, --replay DATASET, --network FILE or --tasks-of CAMPAIGN"
            )
        if not self.schedules:
            raise UsageError(
                "schedules is empty; expected at least one of random, default, dlight, hand"
            )
        for name in ("per_task", "choose_from", "batch", "rounds", "jobs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in ("most_programs", "most_tasks", "least_flops", "sample_random"):
            if getattr(self, name) < 0:
                raise UsageError(f"{name} must be at least 0, got {getattr(self, name)}")
        if not 0 <= self.again_share <= 1:
            raise UsageError(f"again_share must be a share from 0 to 1, got {self.again_share}")
        timing = self.timing
        if timing.clock == "cpu" and (self.rpc is not None or timing.flush_cache):
            raise UsageError(
                "timing.clock=cpu: expected programs on this machine with warm caches; leave out "
                "--rpc and timing.flush_cache"
            )

    def check_threads(self, threads: int | None) -> None:
        """Checks what only programs of one thread allow.

        Args:
            threads: of a program; None = it runs on no CPU.

        Raises:
            UsageError: there are more, or fewer CPUs than jobs.
        """
        for name, is_asked in (
            ("timing.clock=cpu", self.timing.clock == "cpu"), (f"jobs={self.jobs}", self.jobs > 1)
        ):  # fmt: skip
            if is_asked and (threads != 1 or self.rpc is not None):
                raise UsageError(
                    f"{name}: programs of {self.device} have "
                    f"{counted(threads, 'thread') if threads else 'no CPU threads'}; "
                    "expected a label of one thread on this machine"
                )
        cpus = allowed_cpus() or 1
        if self.jobs > cpus:
            raise UsageError(f"jobs must be at most the {cpus} CPUs to use, got {self.jobs}")


def rpc_address(text: str) -> tuple[str, int, str]:
    """Returns (host, port, key) of `HOST:PORT:KEY`.

    Raises:
        UsageError: it is of another form.
    """
    host, _, rest = text.partition(":")
    port, _, key = rest.partition(":")
    if not (host and port.isdecimal() and key):
        raise UsageError(f"--rpc {text!r}: expected HOST:PORT:KEY, e.g. 127.0.0.1:9190:board")
    return host, int(port), key
