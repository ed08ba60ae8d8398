"""`cdmpp device`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cdmpp.cli.main import main
from cdmpp.devices.registry import load_registry
from cdmpp.errors import DeviceError
from tests.paths import ROOT

REPOSITORY = ROOT


def run(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["device", *words]) == 0
    return capsys.readouterr().out


def run_json(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    return json.loads(run(capsys, *words, "--json"))


def test_list(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "list")
    first_words = [line.split()[0] for line in text.splitlines() if line]
    shown = [word for word in first_words if word in load_registry()]
    assert set(shown) == set(load_registry())
    assert text.startswith(f"{len(load_registry())} devices (")
    tables = [line.split() for line in text.splitlines() if line.startswith("label")]
    assert [("tensor" in titles, "fp32" in titles) for titles in tables] == [
        (True, True), (False, True), (False, False),
    ]  # fmt: skip
    assert max(map(len, text.splitlines())) <= 80
    assert [row["name"] for row in run_json(capsys, "list")] == list(load_registry())
    kinds = {row["kind"] for row in run_json(capsys, "list", "--kind", "cpu")}
    assert kinds == {"cpu"}
    assert "this-cpu is the CPU of this machine (" in text
    assert "this-cpu" not in run(capsys, "list", "--kind", "gpu")


def test_list_where_the_system_tells_nothing_of_its_cpu(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(name: str) -> None:
        raise DeviceError(f"{name}: /proc/cpuinfo cannot be read")

    monkeypatch.setattr("cdmpp.cli.device.command.get_device", unknown)
    text = run(capsys, "list", "--kind", "cpu")
    assert "xeon-avx2-1c" in text
    assert "this-cpu is not known here: this-cpu: /proc/cpuinfo cannot be read" in text


def test_the_page_of_the_documentation_is_in_step(capsys: pytest.CaptureFixture[str]) -> None:
    page = (REPOSITORY / "docs" / "devices.md").read_text()
    assert run(capsys, "list", "--markdown") == page, (
        "write it again: cdmpp device list --markdown > docs/devices.md"
    )


def test_show_has_a_source_for_every_number(capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "show", "Tesla T4")
    assert "320 GB/s" in text
    assert "no source" not in text
    value = run_json(capsys, "show", "a100")
    assert value["name"] == "a100-40gb"
    assert "a100" in value["aliases"]
    assert value["mem_bandwidth_bytes_per_s"] == 1555e9
    for name, number in value.items():
        if isinstance(number, int | float):
            assert value["sources"][name]


def test_show_a_device_of_ones_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        "devices:\n  box:\n    kind: gpu\n    compute_capability: {value: '8.6', source: me}\n"
    )
    assert run_json(capsys, "show", "--device-spec", str(path))["compute_capability"] == "8.6"
    assert run_json(capsys, "show", "box", "--devices", str(tmp_path))["name"] == "box"
    assert main(["device", "list", "--devices", str(tmp_path / "none")]) == 4
    assert "no such folder" in capsys.readouterr().err
    words = ("occupancy", "--threads", "128", "--registers", "32", "--device-spec", str(path))
    assert run_json(capsys, *words)["blocks_per_core"] == 12


def test_occupancy(capsys: pytest.CaptureFixture[str]) -> None:
    words = ("occupancy", "--threads", "256", "--registers", "40", "--device", "t4")
    value = run_json(capsys, *words, "--shared-mem", "20000")
    assert value["blocks_per_core"] == 3
    assert value["occupancy"] == 0.75
    assert value["limiters"] == ["shared_memory"]
    assert value["limits"]["max_warps_per_core"] == 32
    text = run(capsys, *words, "--shared-mem", "20000")
    assert "24 of 32" in text
    assert "75.0 %" in text
    assert "limited by                 shared mem" in text
    assert "cannot be launched" in run(capsys, *words, "--shared-mem", "70000")


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("show", "gv101"), 4, "unknown device 'gv101', did you mean 'gv100'"),
        (("show",), 2, "no device: give a NAME"),
        (("show", "--device-spec", "none.yaml"), 4, "cannot read the device file"),
        (("occupancy", "--threads", "1", "--registers", "1"), 2, "no device: give --device NAME"),
        (
            ("occupancy", "--threads", "64", "--registers", "32", "--device", "mi50"),
            4,
            "occupancy is not supported for 'mi50'",
        ),
        (
            ("occupancy", "--threads", "0", "--registers", "32", "--device", "t4"),
            2,
            "got 0 threads",
        ),
    ],
)
def test_errors(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], code: int, message: str
) -> None:
    assert main(["device", *words]) == code
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.out == ""


def test_nothing_heavy_is_loaded() -> None:
    program = (
        "import sys; from cdmpp.cli.main import main; main(['device', 'list']); "
        "print('LOADED', *({'torch', 'tvm', 'pyarrow', 'sklearn', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY
    )
    assert done.stdout.split("LOADED")[1].split() == []
