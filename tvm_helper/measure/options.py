"""Options of a measuring campaign: one dataclass, one YAML file (`configs/measure`)."""

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

#: Source of schedules: random draws from MetaSchedule's space, the default loops of relax, DLight's
#: rules, or random schedules similar to hand-written ones.
Way = Literal["random", "default", "dlight", "hand"]


@dataclass(frozen=True)
class TimingOptions:
    """Number of timings of a program, and the way it is timed.

    Attributes:
        min_repeats: minimum number of timings, unless the budget ends before.
        max_repeats: maximum number of timings.
        min_repeat_s: minimum seconds of a timing, which runs the program repeatedly and divides.
        spread: relative standard error of the mean at which timing ends (0.02 = 2 %).
        budget_s: seconds after which timing ends.
        flush_cache: whether caches are flushed before every run (CPUs only; then a timing is one
            run, as in Tenset's CPU records).
        keep: timings that become the program's costs: all, or only the minimum.
        clock: `wall`, or `cpu`: CPU time of a single-threaded program, for a machine with other
            work.
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
        """Returns JSON values for a campaign's file, without `keep` and `clock` at their defaults,
        as in older files.
        """
        values = to_dict(self)
        for name, default in (("keep", "all"), ("clock", "wall")):
            if values[name] == default:
                del values[name]
        return values


@dataclass(frozen=True)
class TrialOptions:
    """Options of building and timing programs, in a campaign or in a search.

    Attributes:
        device: label of the measured device.
        target: TVM's target as JSON or as a tag; None = derived from the device's description.
        threads: threads of a program on a CPU; None = those of the label.
        seed: seed of all draws.
        force: whether to measure under a label whose description does not match this machine.
        machine_code: whether to store machine-code columns of the built programs.
        build_jobs: number of processes that build. Nothing is built while a program is timed.
        build_timeout_s: time limit of building a program, in seconds.
        run_timeout_s: time limit of timing a program, in seconds.
        queue_timeout_s: time limit of waiting for a worker or a remote device, in seconds; not
            part of the other limits.
        timing: number of timings of a program.
        network_batch: size of every open first axis of an ONNX network.
        network_input: complete shapes of its open inputs, e.g. `images=1x3x224x224`.
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
        """Sizes of a network's open inputs; None if not given."""
        if self.network_batch is None and not self.network_input:
            return None
        return InputSizes(parse_input_shapes(self.network_input), self.network_batch)

    def check_trials(self, *timeouts: str, network: object) -> None:
        """Checks these options and the named time-outs.

        Args:
            network: files of networks; falsy without a network.

        Raises:
            UsageError: no device, sizes without a network, or a number out of range.
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
    """Options of a campaign.

    Attributes:
        sample: tasks: names (`measure --list-tasks`) or Python files.
        sample_random: number of random tasks; the seed determines kinds, sizes and data types.
        held_out: whether random tasks are held-out ones, which other campaigns never draw.
        schedules: sources of schedules (`Way`), used in turn within each task.
        replay: folders in Tenset's layout whose programs are measured.
        replay_devices: devices whose records are replayed; empty = all of the target's kind.
        network: ONNX or torch.export files whose tasks are sampled.
        tasks_of: folders of campaigns whose sampled tasks are sampled again.
        least_flops: minimum number of floating point operations of a task.
        most_tasks: maximum number of tasks, drawn by a hash; 0 = unlimited.
        per_task: number of programs per task.
        most_programs: maximum total number of programs, spread evenly over the tasks; 0 =
            unlimited.
        choose_from: number of schedules drawn per measured one; the model chooses the fastest
            predictions. 1 = no choice.
        model: the choosing model: a run folder, or a packaged model.
        batch: number of programs that are built before they are timed.
        rounds: number of passes over the programs of a batch, so that a disturbance of a second
            does not affect all timings of a program.
        extra_rounds: maximum number of further rounds of a program whose two fastest rounds differ
            by more than 5 %.
        again_share: share of the programs that are built and timed a second time, to estimate the
            noise.
        jobs: number of CPUs that measure in parallel and independently; for single-threaded
            programs.
        draw_timeout_s: time limit of drawing a task's schedules, in seconds.
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
    extra_rounds: int = 0
    again_share: float = 0.0
    jobs: int = 1
    draw_timeout_s: float = 900.0
    stop_after_failures: int = 20
    rpc: str | None = None

    def check(self) -> None:
        """Checks the options without looking at the device.

        Raises:
            UsageError: no device, nothing to measure, or a number out of range.
        """
        self.check_trials("draw_timeout_s", network=self.network)
        check_lasts(self.device)
        sources = (self.sample, self.sample_random, self.replay, self.network, self.tasks_of)
        if not any(sources):
            raise UsageError(
                "nothing to measure: give --task TASK (cdmpp measure --list-tasks), "
                "--sample-random N, --replay DATASET, --network FILE or --tasks-of CAMPAIGN"
            )
        if not self.schedules:
            raise UsageError(
                "schedules is empty; expected at least one of random, default, dlight, hand"
            )
        for name in ("per_task", "choose_from", "batch", "rounds", "jobs"):
            if getattr(self, name) < 1:
                raise UsageError(f"{name} must be at least 1, got {getattr(self, name)}")
        for name in (
            "most_programs", "most_tasks", "least_flops", "sample_random", "extra_rounds"
        ):  # fmt: skip
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
        """Checks the options that need single-threaded programs.

        Args:
            threads: threads of a program; None = it does not run on a CPU.

        Raises:
            UsageError: such an option with another number of threads or `rpc`, or more jobs than
                CPUs.
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
        UsageError: the text has another form.
    """
    host, _, rest = text.partition(":")
    port, _, key = rest.partition(":")
    if not (host and port.isdecimal() and key):
        raise UsageError(f"--rpc {text!r}: expected HOST:PORT:KEY, e.g. 127.0.0.1:9190:board")
    return host, int(port), key
