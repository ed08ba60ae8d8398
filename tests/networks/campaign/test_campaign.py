"""Campaigns: the order, what is kept and repeated, refusals; and one with real samples."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from cdmpp.cli.main import main
from cdmpp.config import dump_text, load_config
from cdmpp.errors import DeviceError, UsageError
from cdmpp.files.journal import read_lines
from cdmpp.networks.architectures.generator import SearchSpace, generate
from cdmpp.networks.architectures.spec import ArchitectureSpec, MlpSpec
from cdmpp.networks.campaign.machine_speed import WORKS
from cdmpp.networks.campaign.options import NetworksConfig
from cdmpp.networks.campaign.run import (
    WORKER_COMMAND,
    ask_worker,
    campaign_samples,
    measure_networks,
)
from cdmpp.networks.campaign.tables import NetworksReport, write_tables
from cdmpp.networks.dataset.store import read_dataset
from cdmpp.processes.campaign import JOURNAL_FILE
from cdmpp.processes.worker import Worker
from tests.devices.machines import ELSEWHERE
from tests.paths import ROOT

pytest.importorskip("torch", reason="torch is not installed")

DEVICE = "epyc-avx512-1c"
SPACE = SearchSpace(
    mlp_share=1.0, sequence_width=(8, 64), sequence_depth=(1, 3), batches=(1, 4, 16),
    batches_per_architecture=(1, 3),
)  # fmt: skip
CONFIG = NetworksConfig(architectures=6, space=SPACE, device=DEVICE, force=True, again=3)
FAKE = (sys.executable, str(Path(__file__).with_name("fake_worker.py")))


def run(config: NetworksConfig, folder: Path) -> NetworksReport:
    return measure_networks(config, folder, worker_command=FAKE)


def samples_in(folder: Path) -> list[dict[str, object]]:
    return [e for e in read_lines(folder / JOURNAL_FILE) if e["kind"] == "sample"]


def test_a_campaign_becomes_a_data_set(tmp_path: Path) -> None:
    report = run(CONFIG, tmp_path)
    networks = list(generate(SPACE, 6))
    graphs = sum(len(network.batches) for network in networks)
    data = read_dataset(tmp_path)
    assert (report.architectures, report.graphs) == (6, graphs)
    assert len(data.labels) == report.samples == 2 * graphs
    assert {row.architecture for row in data.graphs} == {
        network.spec.architecture_id for network in networks
    }
    assert {label.mode for label in data.labels} == {"infer", "train"}
    label = data.labels[0]
    assert (label.time_s, label.memory_bytes, label.process_bytes) == (0.01, 1e6, 2e6)
    assert (label.device, label.threads, label.torch_version) == (DEVICE, 1, "1.0")
    assert report.repeatability is not None
    assert report.repeatability["samples"] == 3
    assert data.manifest["note"]["machine"]["cpu_count"] == os.cpu_count()


def test_what_is_done_is_not_repeated_and_more_may_be_asked_for(tmp_path: Path) -> None:
    first = run(CONFIG, tmp_path)
    done = samples_in(tmp_path)
    again = run(CONFIG, tmp_path)
    assert (again.before, again.seconds_per_sample) == (len(done), None)
    assert samples_in(tmp_path) == done
    more = run(replace(CONFIG, architectures=9), tmp_path)
    assert samples_in(tmp_path)[: len(done)] == done
    assert more.samples > first.samples
    keys = [(e["architecture"], e["batch"], e["mode"], e["round"]) for e in samples_in(tmp_path)]
    assert len(set(keys)) == len(keys)


def test_a_label_is_of_both_measurements(tmp_path: Path) -> None:
    run(CONFIG, tmp_path)
    journal = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    second = next(entry for entry in lines if entry.get("round") == 1)
    second |= {"times_s": [0.03] * 100, "time_s": 0.03, "memory_bytes": 3e6}
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    report = write_tables(tmp_path)
    data = read_dataset(tmp_path)
    joined = [label for label in data.labels if 0.03 in label.times_s]
    assert len(joined) == 1
    assert (joined[0].time_s, joined[0].memory_bytes) == (0.03, 2e6)
    assert len(joined[0].times_s) > 100
    assert report.repeatability is not None
    assert report.repeatability["time_p90"] == pytest.approx(2.0)


def test_what_a_slow_machine_adds_is_taken_out(tmp_path: Path) -> None:
    run(replace(CONFIG, architectures=12, again=1000), tmp_path)
    journal = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    rng = np.random.default_rng(0)
    for entry in lines:
        if entry["kind"] == "sample":
            slow = np.exp(rng.normal(0.0, 0.2, len(WORKS)))
            seconds = 0.01 * slow[0] * np.exp(0.01 * rng.normal())
            entry |= {
                "works_s": [(1e-3 * slow).tolist()], "operators_works_s": (1e-3 * slow).tolist(),
                "times_s": [seconds], "time_s": seconds, "operators_s": [seconds],
            }  # fmt: skip
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    report = write_tables(tmp_path)
    data = read_dataset(tmp_path)
    usual = data.manifest["note"]["speed_correction"]["usual_s"]["product"]
    for label in data.labels:
        assert label.time_s == pytest.approx(0.01 * usual / 1e-3, rel=0.05)
        assert label.operators_s[0] == pytest.approx(0.01 * usual / 1e-3, rel=0.06)
    assert data.manifest["note"]["speed_correction"]["pairs"] == len(data.labels)
    assert report.repeatability is not None
    assert report.repeatability["time_median"] < 0.02
    assert data.manifest["note"]["repeatability_as_timed"]["time_median"] > 0.1


def test_a_disturbed_measurement_counts_only_where_there_is_no_other(tmp_path: Path) -> None:
    run(CONFIG, tmp_path)  # three samples are measured twice
    journal = tmp_path / "journal.jsonl"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    for entry in lines:
        if entry["kind"] == "sample":
            is_first = entry["round"] == 0
            entry |= {
                "works_s": [[1e-3] * len(WORKS)], "operators_works_s": [1e-3] * len(WORKS),
                "utilisation": 0.5 if is_first else 1.0, "times_s": [0.02 if is_first else 0.01],
                "operators_s": [0.02] if is_first else [],
            }  # fmt: skip
    journal.write_text("".join(json.dumps(entry) + "\n" for entry in lines))
    report = write_tables(tmp_path)
    labels = read_dataset(tmp_path).labels
    assert sorted(label.time_s for label in labels)[:4] == [0.01, 0.01, 0.01, 0.02]
    assert all(label.operators_s == () for label in labels)
    assert report.repeatability is None


def test_without_works_times_stay_as_they_were(tmp_path: Path) -> None:
    run(replace(CONFIG, architectures=12, again=1000), tmp_path)
    note = read_dataset(tmp_path).manifest["note"]
    assert note["speed_correction"] is note["repeatability_as_timed"] is None


def test_neighbours_in_the_order_have_nothing_in_common() -> None:
    samples = campaign_samples(
        CONFIG, generate(replace(SPACE, batches_per_architecture=(3, 3)), 40)
    )
    first = [sample for sample in samples if sample.round == 0]
    same = sum(a.network is b.network for a, b in pairwise(first))
    assert len(first) == 240
    assert same < 30  # by chance 5 of 239
    assert [sample.round for sample in samples[-3:]] == [1, 1, 1]


def test_failures_are_labels_and_many_in_a_row_end_the_campaign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_ANSWER", json.dumps({"outcome": "out-of-memory", "time_s": None}))
    report = run(CONFIG, tmp_path / "memory")
    assert set(report.outcomes) == {"out-of-memory"}
    assert {label.time_s for label in read_dataset(tmp_path / "memory").labels} == {None}
    monkeypatch.setenv("FAKE_ANSWER", json.dumps({"outcome": "crashed", "note": "bang"}))
    with pytest.raises(DeviceError, match=r"4 consecutive failures .*: bang"):
        run(replace(CONFIG, stop_after_failures=4), tmp_path / "crash")
    assert len(samples_in(tmp_path / "crash")) == 4


def test_a_worker_that_dies_costs_one_sample_each_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_DIES", "train")
    report = run(replace(CONFIG, again=0), tmp_path)
    counts = report.outcomes
    assert counts["crashed"] == counts["ok"] == report.samples // 2


@pytest.mark.parametrize("change", ["seed", "timing", "torch_version"])
def test_another_campaign_in_the_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    run(CONFIG, tmp_path)
    other = CONFIG
    if change == "seed":
        other = replace(CONFIG, seed=1)
    elif change == "timing":
        other = replace(CONFIG, timing=replace(CONFIG.timing, spread=0.5))
    else:
        monkeypatch.setenv("FAKE_TORCH", "2.0")
    with pytest.raises(UsageError, match=rf"other settings \({change}"):
        run(other, tmp_path)


def test_the_label_of_another_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=f"{ELSEWHERE} does not describe this machine"):
        run(replace(CONFIG, device=ELSEWHERE, force=False), tmp_path)


@pytest.mark.parametrize(
    ("device", "error", "text"),
    [
        (None, UsageError, "--device"),
        ("nowhere", DeviceError, "unknown device 'nowhere'"),
        ("t4", DeviceError, "torch finds no GPU"),
        ("hl100", UsageError, "of kind accelerator"),
    ],
)
def test_devices_that_cannot_be_used(
    tmp_path: Path, device: str | None, error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        run(replace(CONFIG, device=device), tmp_path)


def start(folder: Path, config: NetworksConfig, seconds: str) -> subprocess.Popen[bytes]:
    """Starts a campaign with the fake worker in a process of its own."""
    folder.mkdir(exist_ok=True)
    (folder / "config.yaml").write_text(dump_text(config))
    program = (
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "from pathlib import Path; from cdmpp.cli.main import main; "
        "import cdmpp.networks.campaign.run as m; "
        f"m.measure_networks.__kwdefaults__['worker_command'] = {FAKE!r}; "
        f"sys.exit(main(['networks', 'measure', '--config', {str(folder / 'config.yaml')!r}, "
        f"'--out', {str(folder / 'out')!r}]))"
    )
    environment = {**os.environ, "FAKE_SECONDS": seconds}
    return subprocess.Popen(
        [sys.executable, "-c", program], env=environment, cwd=ROOT, stderr=subprocess.PIPE
    )


def wait_for_samples(folder: Path, count: int) -> None:
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline:
        if len(samples_in(folder)) >= count:
            return
        time.sleep(0.05)
    raise AssertionError(f"no {count} samples in time")


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [signal.SIGKILL, pytest.param(signal.SIGINT, marks=pytest.mark.exhaustive)]
)
def test_killed_or_interrupted_it_goes_on_where_it_was(tmp_path: Path, how: signal.Signals) -> None:
    process = start(tmp_path, CONFIG, seconds="0.3")
    out = tmp_path / "out"
    wait_for_samples(out, 3)
    with pytest.raises(UsageError, match="another campaign is running"):
        run(CONFIG, out)
    process.send_signal(how)
    _, said = process.communicate(timeout=60)
    assert process.returncode == (130 if how == signal.SIGINT else -signal.SIGKILL)
    if how == signal.SIGINT:
        assert said.decode().splitlines()[-1].startswith("cdmpp: interrupted")
    before = samples_in(out)
    assert len(before) >= 3
    with (out / JOURNAL_FILE).open("ab") as journal:
        journal.write(b'{"kind":"sample","archi')  # a line that was cut off
    report = run(CONFIG, out)
    assert report.before == len(before)
    assert samples_in(out)[: len(before)] == before
    assert len(samples_in(out)) == report.samples + 3


def test_tables_of_an_interrupted_campaign(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["networks", "measure", "--tables-only", "--out", str(tmp_path)]) == 3
    assert "no campaign" in capsys.readouterr().err
    run(CONFIG, tmp_path)
    lines = (tmp_path / JOURNAL_FILE).read_bytes().splitlines(keepends=True)
    (tmp_path / JOURNAL_FILE).write_bytes(b"".join(lines[:9]))
    assert main(["networks", "measure", "--tables-only", "--json", "--out", str(tmp_path)]) == 0
    assert json.loads(capsys.readouterr().out)["samples"] == 3
    assert len(read_dataset(tmp_path).labels) == 3


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["--architectures", "0"], 2, "architectures is 0"),
        (["--set", "space.depht=[1,2]"], 2, "did you mean 'space.depth'"),
        (["--config", "missing.yaml"], 2, "missing.yaml"),
        (["--device", "nowhere"], 4, "unknown device 'nowhere'"),
        ([], 2, "no device label"),
        (["--device", "this-cpu"], 2, "cdmpp device add NAME"),
    ],
)
def test_refusals(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], code: int, text: str
) -> None:
    assert main(["networks", "measure", "--out", str(tmp_path), *words]) == code
    said = capsys.readouterr().err
    assert text in said
    assert len(said.splitlines()) == 1


def test_generate_writes_graphs_without_labels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(dump_text(CONFIG))
    words = ["--config", str(tmp_path / "config.yaml"), "--out", str(tmp_path / "out")]
    assert main(["networks", "generate", *words, "--json", "--architectures", "4"]) == 0
    said = json.loads(capsys.readouterr().out)
    data = read_dataset(tmp_path / "out")
    assert (said["architectures"], said["graphs"]) == (4, len(data.graphs))
    assert data.labels == []
    first = data.graphs[0]
    assert first.spec is not None
    assert ArchitectureSpec.from_text(first.spec).architecture_id == first.architecture


def test_the_shipped_campaign_is_large_enough() -> None:
    config = load_config(NetworksConfig, ROOT / "configs" / "networks" / "cpu-small.yaml")
    config.check()
    assert config.architectures >= 400
    fewest = config.space.batches_per_architecture[0]
    assert config.architectures * fewest * len(config.modes) >= 1500


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory):
    log = tmp_path_factory.mktemp("worker") / "log"
    environment = {"OMP_NUM_THREADS": "1"}
    with Worker(WORKER_COMMAND, log, queue_timeout_s=300.0, environment=environment) as process:
        yield process


def ask(worker: Worker, *, timeout_s: float = 100, **values: object) -> dict[str, object]:
    timing = {"warm_up_runs": 1, "warm_up_s": 0.0, "budget_s": 0.05, "least_repeat_s": 0.0,
              "least_repeats": 7, "most_repeats": 7}  # fmt: skip
    spec = ArchitectureSpec(mlp=MlpSpec(features=2048, width=2048, depth=2))
    sample = {"spec": spec.to_text(), "batch": 4, "mode": "infer", "kind": "cpu", "threads": 1,
              "timing": timing, "most_memory_bytes": None, **values}  # fmt: skip
    return ask_worker(worker, {"op": "sample", "timeout_s": timeout_s, "sample": sample})


WEIGHT_BYTES = 4 * (2048 * 2049 * 2 + 2049 * 10 - 10 + 20)


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_memory_of_a_real_sample_is_that_of_its_weights(worker: Worker) -> None:
    infer = ask(worker)
    assert infer["outcome"] == "ok"
    assert infer["memory_bytes"] == pytest.approx(WEIGHT_BYTES, rel=0.1)
    assert infer["allocated_bytes"] == pytest.approx(WEIGHT_BYTES, rel=0.02)
    train = ask(worker, mode="train")
    assert train["memory_bytes"] == pytest.approx(2 * WEIGHT_BYTES, rel=0.1)
    assert train["allocated_bytes"] == pytest.approx(2 * WEIGHT_BYTES, rel=0.02)
    assert 0 < infer["low_s"] <= infer["time_s"] <= infer["high_s"]
    assert 0 < infer["utilisation"] <= 1


@pytest.mark.exhaustive
@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit of the address space")
def test_out_of_memory_is_told_from_a_crash_and_a_time_out(worker: Worker) -> None:
    assert ask(worker, most_memory_bytes=24 << 20)["outcome"] == "out-of-memory"
    slow = ask(worker, timeout_s=0.05)
    assert slow["outcome"] == "timeout"
    assert ask(worker)["outcome"] == "ok"


@pytest.mark.exhaustive
def test_a_machine_without_a_gpu_says_so(worker: Worker) -> None:
    import torch

    answer = ask_worker(worker, {"op": "probe", "timeout_s": 100})
    assert (answer["gpu"] is None) == (not torch.cuda.is_available())
