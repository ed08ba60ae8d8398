"""`cdmpp profile` as its user runs it; the page; watching a command."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from types import SimpleNamespace

import numpy as np
import pynvml
import pytest

from cdmpp.cli.main import main
from cdmpp.errors import DeviceError, UsageError
from cdmpp.profiling.nvml import Nvml
from cdmpp.profiling.schema import Events, Profile, ProfileRow
from cdmpp.profiling.text import spark
from cdmpp.profiling.timeline import timeline_data, write_timeline
from cdmpp.profiling.watch import watch
from tests.paths import ROOT

REPOSITORY = ROOT
CHROME = next(filter(None, map(shutil.which, ("chromium", "google-chrome", "chrome"))), None)


def trace(tmp_path, name="t.json", *, slow=1.0, device=True):
    """A trace of 6 steps on a made-up GPU, with an operator and its kernel in each."""
    events = []
    for step in range(6):
        at = 1000.0 * step
        wobble = 1.0 + 0.01 * ((step * 7) % 6)
        events += [
            {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": at,
             "dur": 90.0, "args": {"External id": step, "Input Dims": [[512, 512], [512, 512]],
                                   "Input type": ["float", "float"]}},
            {"ph": "X", "cat": "kernel", "name": "void sgemm</script><b>(float*)", "pid": 0,
             "tid": 7, "ts": at + 50, "dur": 40.0 * slow * wobble,
             "args": {"External id": step, "registers per thread": 128, "shared memory": 16384,
                      "grid": [4, 4, 1], "block": [256, 1, 1]}},
        ]  # fmt: skip
    head = {"deviceProperties": [{"name": "Tesla T4"}]} if device else {}
    path = tmp_path / name
    path.write_text(json.dumps({**head, "schemaVersion": 1, "traceEvents": events}))
    return path


def run_json(capsys, *words):
    assert main(["profile", *map(str, words), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_table(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["profile", str(trace(tmp_path))]) == 0
    table = capsys.readouterr().out.partition("share: of the time of the block")[0]
    # The first line has the path of the file.
    assert max(map(len, table.splitlines()[1:])) <= 80
    monkeypatch.setenv("COLUMNS", "300")
    assert main(["profile", str(trace(tmp_path))]) == 0
    out = capsys.readouterr().out
    assert "on t4" in out
    assert "device busy" in out
    assert "Device activities" in out
    line = next(line for line in out.splitlines() if "sgemm" in line)
    assert "registers" in line
    assert "operator model" in line
    assert "compute-bound" in line


def test_json_and_device_of_the_file(tmp_path, capsys):
    found = run_json(capsys, trace(tmp_path))
    assert found["device"] == "t4"
    kernel = next(line for line in found["rows"] if line["kind"] == "kernel")
    assert kernel["calls"] == 6
    assert kernel["flop_per_s"] == pytest.approx(2 * 512**3 * 6 / kernel["total_s"])
    assert kernel["occupancy"] == 0.5
    assert kernel["predicted_s"] > 0
    assert 0 < found["utilisation"]["device_share"] < 0.1
    other = run_json(capsys, trace(tmp_path), "--device", "v100")
    assert other["device"] == "v100"
    none = run_json(capsys, trace(tmp_path, device=False))
    assert none["device"] is None
    assert "has no device name" in none["notes"][0]


def test_several_files_and_top(tmp_path, capsys):
    files = [trace(tmp_path, name) for name in ("a.json", "b.json")]
    found = run_json(capsys, *files)
    assert {line["calls"] for line in found["rows"]} == {12}
    assert any("starts at 0" in note for note in found["notes"])
    nvprof = tmp_path / "n.txt"
    nvprof.write_text(
        "==1== Profiling result:\nTime(%)      Time     Calls       Avg       Min       Max  Name\n"
        + "".join(f" 20.00%  1.0000ms  1  1.0000ms  1.0000ms  1.0000ms  k{i}\n" for i in range(5))
    )
    assert main(["profile", str(nvprof), "--top", "2"]) == 0
    assert "and 3 more with 60.0 % of the time" in capsys.readouterr().out


def test_compare(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "300")
    before, after = trace(tmp_path, "a.json"), trace(tmp_path, "b.json", slow=1.5)
    assert main(["profile", str(before), "--compare", str(after)]) == 0
    out = capsys.readouterr().out
    assert re.search(r"1\.500\s+0\.00\d+\s+slower\s+6/6\s+sgemm", out)
    assert re.search(r"1\.000\s+1\s+no difference\s+6/6\s+aten::mm", out)
    found = run_json(capsys, before, "--compare", after)
    assert found["changes"][0]["is_significant"] is True


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["none.json"], 3, "no such file"),
        ([], 2, "no profile given; run cdmpp profile FILE"),
        (["t.json", "--device", "t44"], 4, "unknown device 't44'"),
        (["t.json", "--top", "-1"], 2, "--top -1"),
        (["t.json", "--compare", "gone"], 3, "gone: no such file"),
        (["text", "--timeline", "x.html"], 3, "has only sums"),
        (["t.json", "--timeline", "no/such/folder/x.html"], 3, "cannot write"),
        (["t.json", "--timeline", "t.json"], 2, "t.json exists and is not an HTML page; give "),
        (["t.json", "--compare", "t.json", "--device", "t4"], 2, "combined with --device"),
        (["t.json", "--watch", "true"], 2, "got also t.json"),
        (["--watch"], 2, "expected a command"),
        (["--watch", "no-such-program-at-all"], 2, "cannot start 'no-such-program-at-all'"),
        (["--interval", "0", "--watch", "true"], 2, "interval above 0"),
        (["--interval", "nan", "--watch", "true"], 2, "interval above 0"),
    ],
)
def test_one_sentence_and_the_exit_code(tmp_path, capsys, monkeypatch, words, code, text):
    monkeypatch.chdir(tmp_path)
    trace(tmp_path)
    (tmp_path / "text").write_text(
        "==1== Profiling result:\nTime(%)      Time     Calls       Avg       Min       Max  Name\n"
        " 100.0%  1.0ms  1  1.0ms  1.0ms  1.0ms  k\n"
    )
    assert main(["profile", *words]) == code
    err = capsys.readouterr().err.strip()
    assert text in err
    assert err.startswith("cdmpp: error: ")
    assert "\n" not in err


def test_the_page_holds_the_events_and_no_foreign_markup(tmp_path, capsys):
    page = tmp_path / "page.html"
    found = run_json(capsys, trace(tmp_path), "--timeline", page)
    assert found["timeline"] == {"path": str(page), "events": 12, "left_out": 0}
    text = page.read_text()
    assert text.count("</script>") == 2
    assert "<b>" not in text
    assert not re.search(r"(src|href)\s*=|https?://|@import", text)
    data = json.loads(re.search(r'<script id="data"[^>]*>(.*?)</script>', text, re.DOTALL)[1])
    assert len(data["start"]) == 12
    assert data["rows"][data["row"][-1]]["name"] in ("aten::mm", "void sgemm</script><b>(float*)")
    assert {lane["depth"] for lane in data["lanes"]} == {1}
    assert 0.0 < max(data["busy"]) <= 1.0


def nested_profile():
    rows = tuple(
        ProfileRow(kind="cpu_op", name=n, short_name=n, calls=1, total_s=1.0) for n in "abc"
    )
    start, duration = np.array([0.0, 1.0, 2.0, 5.0]), np.array([4.0, 2.0, 0.5, 1.0])
    numbers = np.array([0, 1, 2, 0])
    return Profile("x", "test", rows, Events(start, duration, np.zeros(4, int), numbers, ("l",)))


def test_nested_events_lie_below_each_other_and_the_shortest_are_left_out():
    data, left_out = timeline_data(nested_profile())
    assert (data["depth"], left_out) == ([0, 1, 2, 0], 0)
    assert data["lanes"] == [{"name": "l", "depth": 3}]
    data, left_out = timeline_data(nested_profile(), most=2)
    assert (data["duration"], left_out) == ([4 * 10**9, 2 * 10**9], 2)


def test_busy_bins_add_up_to_the_busy_time():
    data, _ = timeline_data(nested_profile())
    assert np.mean(data["busy"]) * 6.0 == pytest.approx(5.0, abs=1e-3)


@pytest.mark.skipif(CHROME is None, reason="no Chromium on this machine")
@pytest.mark.slow
def test_the_page_draws_every_event_in_a_browser(tmp_path):
    write_timeline(nested_profile(), tmp_path / "page.html")
    done = subprocess.run(
        [str(CHROME), "--headless", "--no-sandbox", "--disable-gpu", "--window-size=1200,600",
         "--virtual-time-budget=2000", f"--user-data-dir={tmp_path / 'chrome'}", "--dump-dom",
         (tmp_path / "page.html").as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert 'data-drawn="4"' in done.stdout, done.stderr[-2000:]


BUSY = "import time\nend = time.time() + 1.2\nwhile time.time() < end: pass"


@pytest.mark.exhaustive
def test_watch_sees_the_load_of_a_command():
    watched = watch([sys.executable, "-c", BUSY], interval_s=0.1)
    assert watched.exit_code == 0
    assert len(watched.samples) >= 3
    found = watched.summary()
    # Other processes may hold the core, so the share is only known not to be nothing.
    assert 0.02 < found["cpu_cores_mean"] < 4.0
    assert found["memory_bytes_max"] > 2**20
    assert 0.0 <= found["machine_share_mean"] <= 1.0
    assert watched.gpu_note or any(sample.gpus for sample in watched.samples)


def test_watch_as_a_command_passes_the_exit_code_on_and_keeps_stdout_json():
    done = subprocess.run(
        [sys.executable, "-m", "cdmpp.cli.main", "profile", "--json", "--interval", "0.05",
         "--watch", sys.executable, "-c", "import time; print('hello'); time.sleep(.3); exit(7)"],
        capture_output=True, text=True, cwd=REPOSITORY, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 7
    value = json.loads(done.stdout)
    assert (value["exit_code"], value["units"]["cpu_cores"]) == (7, "cores")
    assert "hello" in done.stderr


def test_interrupt_ends_the_watched_command(tmp_path):
    mark = tmp_path / "pid"
    code = f"import os, time; open({str(mark)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    with subprocess.Popen(
        [sys.executable, "-m", "cdmpp.cli.main", "profile", "--watch", sys.executable, "-c", code],
        cwd=REPOSITORY, stderr=subprocess.PIPE, text=True, start_new_session=True,
        # A test run in the background ignores the signal, and so would what it starts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    ) as process:  # fmt: skip
        try:
            deadline = time.monotonic() + 60
            while not (mark.exists() and mark.read_text()) and time.monotonic() < deadline:
                time.sleep(0.05)
            os.killpg(process.pid, signal.SIGINT)
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "interrupted" in err
    with pytest.raises(ProcessLookupError):
        os.kill(int(mark.read_text()), 0)


def test_nvml_on_a_stand_in_for_the_library(monkeypatch):
    """No GPU is at hand: two stand in, the second has no power meter."""

    def power_mw(handle):
        if handle == 2:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 70_500

    answers = {
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": lambda: 2,
        "nvmlDeviceGetHandleByIndex": lambda index: index + 1,
        "nvmlDeviceGetHandleByUUID": {b"GPU-two": 2}.__getitem__,
        "nvmlDeviceGetUtilizationRates": lambda handle: SimpleNamespace(gpu=40 * handle),
        "nvmlDeviceGetMemoryInfo": lambda handle: SimpleNamespace(used=1 << 30),
        "nvmlDeviceGetPowerUsage": power_mw,
    }
    for name, answer in answers.items():
        monkeypatch.setattr(pynvml, name, answer)
    nvml = Nvml()
    first, second = nvml.sample()
    assert (first.busy_share, first.memory_bytes, first.power_w) == (0.4, 1 << 30, 70.5)
    assert (second.index, second.busy_share, second.power_w) == (1, 0.8, None)
    nvml.close()
    assert [gpu.busy_share for gpu in Nvml("GPU-two").sample()] == [0.8]

    def broken():
        raise pynvml.NVMLError(pynvml.NVML_ERROR_DRIVER_NOT_LOADED)

    monkeypatch.setattr(pynvml, "nvmlInit", broken)
    with pytest.raises(DeviceError, match="no NVML"):
        Nvml()


def test_without_its_package_nvml_says_how_to_get_it(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with pytest.raises(DeviceError, match=r"pip install 'cdmpp\[nvml\]'"):
        Nvml()


def test_texts():
    assert spark([0.0, 1.0, 0.0]) == " @ "
    assert len(spark(list(range(1000)))) == 48


def test_watch_needs_a_command():
    with pytest.raises(UsageError, match="expected a command"):
        watch([])
    with pytest.raises(UsageError, match=r"cannot start 'a.*null byte"):
        watch(["a\0b"])


def test_help_loads_nothing_heavy():
    code = (
        "import sys\nfrom cdmpp.cli.main import main\ntry:\n    main(['profile', '--help'])\n"
        "except SystemExit:\n    pass\nprint('LOADED', *[n for n in ('torch', 'tvm', 'pyarrow', "
        "'rich') if n in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.split("LOADED")[1].strip() == ""
