"""A campaign: draws networks, runs each in a process of its own; what it knows is in a journal.

Every sample is on the disk before the next one begins, so that a killed campaign goes on where it
was.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from cdmpp.config import to_dict
from cdmpp.devices.registry import check_lasts, get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.devices.this_machine import check_is_here
from cdmpp.errors import DeviceError, UsageError
from cdmpp.files.journal import LineJournal
from cdmpp.machine import caches, check_threads, measuring_machine, thread_environment
from cdmpp.networks.architectures.generator import GeneratedNetwork, generate
from cdmpp.networks.architectures.spec import ArchitectureSpec
from cdmpp.networks.campaign.options import NetworksConfig
from cdmpp.networks.campaign.tables import COMMAND, NetworksReport, write_tables
from cdmpp.networks.graph.execution import Mode
from cdmpp.processes.campaign import (
    JOURNAL_FILE,
    CampaignProgress,
    Clock,
    OnProgress,
    SameFailures,
    campaign_folder,
    settle,
    show_nothing,
)
from cdmpp.processes.worker import Worker

_LOG_FILE = "worker.log"
#: What must be the same when a campaign is continued.
_FIXED = ("device", "threads", "seed", "space", "timing", "most_memory_bytes", "torch_version")
_PROBE_SECONDS = 120.0
WORKER_COMMAND = (sys.executable, "-m", "cdmpp.networks.campaign.worker")
_SECONDS_TO_START = 300.0
#: The worker itself ends what takes too long; this is for a worker that hangs.
_SECONDS_TO_ANSWER = 30.0
#: Every part of a sample may take its time-out.
_MOST_PARTS = 2


@dataclass(frozen=True)
class Sample:
    """One thing to measure; `round` is 1 for the second measurement of the same."""

    network: GeneratedNetwork
    batch: int
    mode: Mode
    round: int = 0

    @property
    def key(self) -> tuple[str, int, str, int]:
        """What the journal knows it by."""
        return self.network.spec.architecture_id, self.batch, self.mode, self.round

    @property
    def order(self) -> str:
        """A place in an order that has nothing to do with what is measured."""
        return hashlib.sha256(repr(self.key).encode()).hexdigest()


def measure_networks(
    config: NetworksConfig,
    folder: Path,
    *,
    device_folders: Sequence[Path] = (),
    on_progress: OnProgress | None = None,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> NetworksReport:
    """Measures what the configuration asks for into a folder; continues what is there.

    Args:
        config: what.
        folder: made when missing; becomes a data set of networks.
        device_folders: folders with device files of the user.
        on_progress: called after every step.
        worker_command: what runs the samples.

    Raises:
        UsageError: a configuration that makes no sense or is not that of the campaign in the
            folder, or another campaign holds the folder.
        DeviceError: unknown device, no GPU, or too many failures in a row.
        DataError: a file cannot be read or written.
    """
    config.check()
    device = _device(config, device_folders)
    show = on_progress or show_nothing
    with campaign_folder(Path(folder), what="measuring campaign") as folder:
        environment = thread_environment(device.threads or 1, device.simd_bits)
        worker = Worker(
            worker_command, folder / _LOG_FILE, queue_timeout_s=_SECONDS_TO_START,
            environment=environment,
        )  # fmt: skip
        with LineJournal(folder / JOURNAL_FILE) as journal, worker:
            _settle(config, folder, device, worker)
            campaign = _Campaign(config, journal, worker, device, show)
            before = campaign.sample_count
            rate = campaign.run()
        (folder / _LOG_FILE).unlink(missing_ok=True)
        show(CampaignProgress("writing tables", 0, 1))
        return replace(write_tables(folder), before=before, seconds_per_sample=rate)


def ask_worker(worker: Worker, request: dict[str, Any]) -> dict[str, Any]:
    """Returns the answer; `outcome` is `crashed` when the worker died or hung.

    Raises:
        DeviceError: the worker cannot be started.
    """
    allowed_s = _MOST_PARTS * request["timeout_s"] + _SECONDS_TO_ANSWER
    answer = worker.ask(request, timeout_s=allowed_s)
    if answer.outcome == "done":
        return answer.value
    note = f"the process that runs samples failed: {answer.text}"
    return {"outcome": "crashed", "note": note}


def campaign_samples(config: NetworksConfig, networks: Iterable[GeneratedNetwork]) -> list[Sample]:
    """Returns everything to measure, in an order in which neighbours have nothing in common."""
    samples = sorted(
        (
            Sample(network, batch, mode)
            for network in networks
            for batch in network.batches
            for mode in config.modes
        ),
        key=lambda sample: sample.order,
    )
    again = [Sample(s.network, s.batch, s.mode, round=1) for s in samples[: config.again]]
    return samples + again


class _Campaign:
    def __init__(
        self,
        config: NetworksConfig,
        journal: LineJournal,
        worker: Worker,
        device: DeviceSpec,
        show: OnProgress,
    ) -> None:
        self._config = config
        self._journal = journal
        self._worker = worker
        self._device = device
        self._show = show
        self._failures = SameFailures(
            config.stop_after_failures, ", or give --set stop_after_failures=0"
        )

    @property
    def sample_count(self) -> int:
        """Samples that are done, failed ones included."""
        return sum(entry["kind"] == "sample" for entry in self._journal.entries)

    def run(self) -> float | None:
        """Measures what is missing; returns the mean seconds of a sample."""
        samples = campaign_samples(self._config, self._networks())
        done = {_key(entry) for entry in self._journal.entries if entry["kind"] == "sample"}
        missing = [sample for sample in samples if sample.key not in done]
        clock = Clock(len(missing))
        for finished, sample in enumerate(missing, start=len(samples) - len(missing)):
            self._progress(finished, len(samples), clock)
            self._measure(sample)
            clock.add()
        if missing:
            self._progress(len(samples), len(samples), clock)
        return clock.seconds_each()

    def _progress(self, done: int, total: int, clock: Clock) -> None:
        failed = sum(
            entry["kind"] == "sample" and entry["outcome"] != "ok"
            for entry in self._journal.entries
        )
        self._show(CampaignProgress("measuring", done, total, failed, clock.seconds_left()))

    def _networks(self) -> list[GeneratedNetwork]:
        """Returns the architectures; those of an earlier run are in the journal."""
        config = self._config
        known = [
            GeneratedNetwork(
                ArchitectureSpec.from_text(json.dumps(entry["spec"])), tuple(entry["batches"]),
                entry["flops"],
            )
            for entry in self._journal.entries
            if entry["kind"] == "network"
        ]  # fmt: skip
        if len(known) >= config.architectures:
            return known[: config.architectures]
        drawn = generate(config.space, config.architectures, seed=config.seed, known=known)
        for number, network in enumerate(drawn):
            if number >= len(known):
                known.append(network)
                self._journal.append(
                    {"kind": "network", "spec": json.loads(network.spec.to_text()),
                     "batches": network.batches, "flops": network.flops}
                )  # fmt: skip
            self._show(CampaignProgress("drawing", number + 1, config.architectures))
        return known

    def _measure(self, sample: Sample) -> None:
        config = self._config
        timing = config.timing
        if sample.round:
            timing = replace(timing, operator_runs=0)
        answer = ask_worker(
            self._worker,
            {
                "op": "sample", "timeout_s": config.timeout_s,
                "sample": {
                    "spec": sample.network.spec.to_text(), "batch": sample.batch,
                    "mode": sample.mode, "kind": self._device.kind,
                    "threads": self._device.threads or 1, "timing": to_dict(timing),
                    "most_memory_bytes": config.most_memory_bytes,
                },
            }
        )  # fmt: skip
        architecture, batch, mode, number = sample.key
        self._journal.append(
            {"kind": "sample", "architecture": architecture, "batch": batch, "mode": mode,
             "round": number, "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
             **answer}
        )  # fmt: skip
        is_broken = answer["outcome"] in ("crashed", "timeout")
        self._failures.add("crashed or timed out" if is_broken else "", answer.get("note", ""))


def _device(config: NetworksConfig, folders: Sequence[Path]) -> DeviceSpec:
    if config.device is None:
        raise UsageError(
            "no device label; give --device LABEL, see cdmpp device list, or describe this machine "
            "with cdmpp device add"
        )
    check_lasts(config.device)
    device = get_device(config.device, folders)
    if not config.force:
        check_is_here(device)
    if device.kind not in ("cpu", "gpu"):
        raise UsageError(
            f"{device.name} is of kind {device.kind}, expected a cpu or gpu that torch runs on"
        )
    if device.kind == "cpu":
        if device.threads is None:
            raise UsageError(
                f"{device.name} has no number of threads; add `threads` to its device file"
            )
        check_threads(device.name, device.threads)
    return device


def _settle(config: NetworksConfig, folder: Path, device: DeviceSpec, worker: Worker) -> None:
    """Writes what the campaign is, or checks that it is the one in the folder."""
    worker.start()
    gpu: str | None = None
    if device.kind == "gpu":
        answer = ask_worker(worker, {"op": "probe", "timeout_s": _PROBE_SECONDS})
        gpu = answer.get("gpu")
        if gpu is None:
            raise DeviceError(
                f"{device.name} is a GPU, but torch finds no GPU here "
                f"({answer.get('note', 'torch.cuda.is_available() is false')}). Run this on a "
                "machine with the GPU and torch for CUDA, or choose the label of a CPU"
            )
    values = to_dict(config) | {
        "device": device.name, "threads": device.threads if device.kind == "cpu" else None,
        "torch_version": worker.facts["torch_version"],
    }  # fmt: skip
    settle(
        folder,
        values,
        fixed=_FIXED,
        machine=lambda: {**measuring_machine(), "caches": caches() or None, "gpu": gpu},
        command=COMMAND,
    )


def _key(entry: dict[str, Any]) -> tuple[str, int, str, int]:
    return entry["architecture"], entry["batch"], entry["mode"], entry["round"]
