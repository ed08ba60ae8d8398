"""Where shards are built: processes of this machine or a Ray cluster, with the same result."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from cdmpp.datasets.extraction.extract import extract
from cdmpp.datasets.tenset.source import TensetRecords
from cdmpp.errors import UsageError
from cdmpp.extras import require
from cdmpp.processes.pool import run_in_processes
from tests.datasets.tiny import fake_featurise
from tests.paths import ROOT

needs_ray = pytest.mark.skipif(
    importlib.util.find_spec("ray") is None, reason="ray is not installed"
)

_CHILD = ROOT / "tests" / "datasets" / "extraction" / "extract_child.py"


def command(tmp_path: Path, dataset: Path, out: str, backend: str, jobs: int) -> list[str]:
    return [sys.executable, str(_CHILD), str(dataset), str(tmp_path / out), backend, str(jobs)]


def environment(tmp_path: Path, pause: float, **more: str) -> dict[str, str]:
    own = {"PYTHONPATH": str(ROOT), "PIDS": str(tmp_path / "pids"), "PAUSE": str(pause)}
    (tmp_path / "pids").write_text("")
    return {k: v for k, v in os.environ.items() if k != "RAY_ADDRESS"} | own | more


def last_line(tmp_path: Path, dataset: Path, backend: str, **more: str) -> str:
    """Returns the last line on stderr of an extraction that fails."""
    done = subprocess.run(
        command(tmp_path, dataset, "out", backend, 2), env=environment(tmp_path, 0, **more),
        check=False, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 1
    return done.stderr.strip().splitlines()[-1]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


@pytest.mark.exhaustive
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["local", pytest.param("ray", marks=needs_ray)])
def test_a_killed_worker_loses_nothing(tiny_dataset: Path, tmp_path: Path, backend: str) -> None:
    running = subprocess.Popen(
        command(tmp_path, tiny_dataset, "killed", backend, 2),
        env=environment(tmp_path, 0.7),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        deadline = time.monotonic() + 120
        while not list((tmp_path / "killed").glob("shard-*.json")):
            assert time.monotonic() < deadline, "no shard was finished"
            assert running.poll() is None, "the run ended before a worker could be killed"
            time.sleep(0.02)
        workers = set((tmp_path / "pids").read_text().split())
        last = (tmp_path / "pids").read_text().split()[-1]
        os.kill(int(last), signal.SIGKILL)
        out, _ = running.communicate(timeout=120)
    finally:
        running.kill()
        running.wait()
    assert running.returncode == 0
    assert str(running.pid) not in workers
    assert set((tmp_path / "pids").read_text().split()) - {last}, "another worker went on"
    alone = subprocess.run(
        command(tmp_path, tiny_dataset, "undisturbed", "local", 1),
        env=environment(tmp_path, 0),
        check=True,
        capture_output=True,
        text=True,
    )
    assert out.split() == alone.stdout.split()
    assert content(tmp_path / "killed") == content(tmp_path / "undisturbed")


@needs_ray
@pytest.mark.slow
def test_what_a_ray_worker_raises_is_told(tiny_dataset: Path, tmp_path: Path) -> None:
    last = last_line(tmp_path, tiny_dataset, "ray", SHORT="1")
    assert last.startswith("DataError: the featuriser returned 0 results for 3 records of task")


@needs_ray
@pytest.mark.slow
def test_a_cluster_that_cannot_be_reached(tiny_dataset: Path, tmp_path: Path) -> None:
    last = last_line(tmp_path, tiny_dataset, "ray", RAY_ADDRESS="nothing://there")
    assert "cannot use the Ray cluster at nothing://there" in last


def test_without_ray_the_error_says_what_to_install(
    tiny_dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(UsageError, match=r"--backend ray needs .*pip install 'cdmpp\[ray\]'"):
        extract(TensetRecords(tiny_dataset, None, fake_featurise), tmp_path / "out", backend="ray")


def test_require_returns_what_is_there() -> None:
    assert require("json", extra="x", purpose="a test").dumps([1]) == "[1]"


@pytest.mark.exhaustive
def test_workers_that_always_die_end_the_run(tiny_dataset: Path, tmp_path: Path) -> None:
    last = last_line(tmp_path, tiny_dataset, "local", CRASH="1")
    assert last.startswith("DataError: worker processes died 4 times, with 0 of 6 parts finished")


def test_many_calls_come_back_once_each() -> None:
    calls = [(number, 7) for number in range(11)]
    results = dict(run_in_processes(pow, calls, jobs=2))
    assert results == {number: number**7 for number in range(11)}
    assert dict(run_in_processes(pow, calls, jobs=1)) == results


@pytest.mark.parametrize(
    ("function", "guard"), [("operator.add", "True"), ("add", '__name__ == "__main__"')]
)
def test_a_script_runs_once_also_without_a_guard(tmp_path: Path, function: str, guard: str) -> None:
    """Its workers ran it again, failed at the same call, and the run ended as "workers died"."""
    script = tmp_path / "script.py"
    script.write_text(
        "import operator\n"
        "from cdmpp.processes.pool import run_in_processes\n"
        "def add(a, b): return a + b\n"
        f"if {guard}:\n"
        f"    print(sorted(run_in_processes({function}, [(1, 2), (3, 4)], jobs=2)))\n"
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("[(0, 3), (1, 7)]\n", "")
