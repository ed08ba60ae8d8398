"""Measuring campaigns: draws networks and measures each in its own process.

Every sample is written to a journal before the next one starts, so a killed campaign can resume.
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
#: Options that must not change when a campaign is resumed.
_FIXED = ("device", "threads", "seed", "space", "timing", "most_memory_bytes", "torch_version")
_PROBE_SECONDS = 120.0
WORKER_COMMAND = (sys.executable, "-m", "cdmpp.networks.campaign.worker")
_SECONDS_TO_START = 300.0
#: Extra seconds after the worker's own time-out, for a worker that hangs.
_SECONDS_TO_ANSWER = 30.0
#: Maximum number of parts of a sample, each with its own time-out.
_MOST_PARTS = 2


@dataclass(frozen=True)
class Sample:
    """A network at one batch size and mode to measure; `round` is 1 for its second measurement."""

    network: GeneratedNetwork
    batch: int
    mode: Mode
    round: int = 0

    @property
    def key(self) -> tuple[str, int, str, int]:
        """Key in the journal."""
        return self.network.spec.architecture_id, self.batch, self.mode, self.round

    @property
    def order(self) -> str:
        """Sort key of a pseudorandom order."""
        return hashlib.sha256(repr(self.key).encode()).hexdigest()


def measure_networks(
    config: NetworksConfig,
    folder: Path,
    *,
    device_folders: Sequence[Path] = (),
    on_progress: OnProgress | None = None,
    worker_command: Sequence[str] = WORKER_COMMAND,
) -> NetworksReport:
    """Measures the configured networks into a folder; resumes a campaign in the folder.

    Args:
        config: the configuration.
        folder: data set of networks to write; created if it does not exist.
        device_folders: folders with device files of the user.
        on_progress: called after every step.
        worker_command: command of the process that runs the samples.

    Raises:
        UsageError: the configuration is invalid or differs from that of the folder's campaign, or
            another campaign is using the folder.
        DeviceError: the device is unknown, there is no GPU, or too many samples failed in a row.
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
    """Returns the worker's response; `outcome` is `crashed` if the worker died or hung.

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
    """Returns all samples in a pseudorandom order, then the samples to measure again."""
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
        """Number of finished samples, including failed ones."""
        return sum(entry["kind"] == "sample" for entry in self._journal.entries)

    def run(self) -> float | None:
        """Measures the missing samples; returns their mean seconds, None if none was missing."""
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
        """Returns the architectures from the journal and newly drawn ones."""
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
    """Writes the campaign's options, or checks that they fit the campaign in the folder."""
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
