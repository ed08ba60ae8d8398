"""No command prints a number as certain: every row has low < high around it, or no interval."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cdmpp.analytic.device_numbers import as_fitted
from cdmpp.analytic.kernels.times import KernelTimes
from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device, load_registry
from cdmpp.replay.costs import exact
from cdmpp.replay.traces.dlrm import dlrm_iteration, iteration_graph, load_dlrm
from tests.paths import ROOT

PRESET = ROOT / "configs" / "replay" / "dlrm-default.yaml"
_VALUES = ("latency", "total", "time", "predicted", "bound", "seconds")


def intervals(value: Any) -> Iterator[tuple[str, float | None, float | None, float | None]]:
    """Yields (key, prediction, low, high) of every pair of ends in plain values."""
    if isinstance(value, list):
        for one in value:
            yield from intervals(one)
    if not isinstance(value, dict):
        return
    for key, low in value.items():
        if "low_" in key and not isinstance(low, dict):
            high = value[key.replace("low_", "high_")]
            names = [key.replace("low_", f"{name}_") for name in _VALUES]
            names += [key.replace("low_", "")] + [name for name in value if name in _VALUES]
            found = next((value[name] for name in names if name in value), None)
            yield key, found, low, high
        elif "low_" in key:
            for name in low:
                times = value["time_" + key.partition("_")[2]]
                high = value[key.replace("low_", "high_")]
                yield f"{key} {name}", times[name], low[name], high[name]
    for one in value.values():
        yield from intervals(one)


GPUS = "v100,h100,mi300x"
COMMANDS = [
    *(f"replay {PRESET} --device {label}" for label in ("v100", "h100", "rtx3090")),
    f"analytic operator predict --op linear --shape batch=1,m=1,n=1,k=1 --device {GPUS}",
    "analytic operator predict --op linear --shape batch=1,m=512,n=1024,k=1024 --device t4,h100",
    "analytic kernels predict --kernel gemm --call m=1,n=64,k=64,dtype=bfloat16 --device h100,b200",
    "analytic kernels predict --kernel gemm --call m=4096,n=4096,k=4096,dtype=fp8 --device h100",
    *(
        f"analytic conv {which} --layer {layer} --device {label}"
        for which in ("predict", "pick")
        for layer in ("1,1,1,1,1,1,0", "32,64,56,128,3,1,1")
        for label in ("v100", "p100", "h100")
    ),
    "analytic embedding predict --batch 64 --tables 8 --rows 1000 --lookups 10 --width 64 "
    "--device v100",
    "roofline --op linear --shape batch=1,m=512,n=1024,k=1024 --device v100",
    "compare --transformer layers=1,width=64,heads=1,ffn=64,vocab=64 --prefill 16 --decode-at 16 "
    "--device h100,a100",
]  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS)
def test_no_interval_has_zero_width(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*command.split(), "--json"]) == 0
    rows = list(intervals(json.loads(capsys.readouterr().out)))
    assert rows
    for key, value, low, high in rows:
        if low is None or high is None:
            assert low is high, key
            continue
        assert low < high, (key, value)
        assert value is None or low <= value <= high, (key, low, value, high)


def test_given_times_have_no_interval(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "graph.json"
    operators = [{"id": "a", "kind": "conv2d", "time_s": 1e-3}, {"id": "b", "time_s": 2e-3}]
    graph = {"format": "cdmpp-operator-graph", "version": 1, "name": "two", "operators": operators}
    path.write_text(json.dumps(graph))
    assert main(["replay", str(path)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("two: 3.00 ms\nno interval: the error of these times is not known\n")
    assert not exact(1e-3, "given").has_interval


def test_a_preset_names_what_has_no_interval(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["replay", str(PRESET), "--device", "h100"]) == 0
    shown = capsys.readouterr().out
    parts = "memcpy, embedding-backward-sgd and embedding"
    assert f"the interval is at least this wide: {parts} have no known error" in shown
    assert "host link assumed: 8.1 GB/s, as measured on a100-40 and v100" in shown
    assert main(["replay", str(PRESET), "--device", "v100"]) == 0
    assert "host link assumed" not in capsys.readouterr().out


@pytest.mark.exhaustive
def test_presets_run_on_every_gpu() -> None:
    preset = load_dlrm(PRESET)
    for label, spec in load_registry().items():
        if spec.kind == "gpu" and spec.clock_hz:
            graph = iteration_graph(
                dlrm_iteration(preset), KernelTimes(spec), name="dlrm", device=label
            )
            assert sum(one.time_s or 0.0 for one in graph.operators) > 1e-3


def test_two_labels_of_a_chip_are_one_device(capsys: pytest.CaptureFixture[str]) -> None:
    assert as_fitted(get_device("v100"), ["t4", "v100-32gb"]).name == "v100-32gb"
    assert as_fitted(get_device("v100"), ["v100", "v100-32gb"]).name == "v100"
    assert as_fitted(get_device("h100"), ["v100-32gb"]).name == "h100"
    found = []
    for label in ("v100", "v100-32gb"):
        words = ["--layer", "32,64,56,128,3,1,1", "--device", label, "--json"]
        assert main(["analytic", "conv", "predict", *words]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
