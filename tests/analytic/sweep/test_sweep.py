"""A GPU added by a sweep: the list, timing, the journal, the file and what it corrects."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from cdmpp.analytic.gpu_kernels.calls import DecodeAttention, Gemm, GpuCall, PrefillAttention
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.operators.intervals import packaged_operators
from cdmpp.analytic.sweep import predict
from cdmpp.analytic.sweep.calls import (
    CORRECTED,
    Fp32Operator,
    Move,
    SweepCall,
    call_json,
    call_of,
    sweep_calls,
    sweep_family,
)
from cdmpp.analytic.sweep.correction import CorrectionOptions, fit_correction, left_out_logs
from cdmpp.analytic.sweep.inputs import operators_of
from cdmpp.analytic.sweep.predict import SweptKernels, SweptOperators
from cdmpp.analytic.sweep.rules import FamilyRules, SweepRules, packaged_rules
from cdmpp.analytic.sweep.run import JOURNAL, expected_s, plan_of, run_sweep
from cdmpp.analytic.sweep.sweep_file import Sweep, packaged_sweep
from cdmpp.analytic.sweep.timers import TimingMode, median_and_noise
from cdmpp.analytic.sweep.torch_kernels import TorchLauncher
from cdmpp.cli.device import sweep as command
from cdmpp.cli.main import main
from cdmpp.devices.device_file import load_device_spec
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError, DeviceError, UsageError
from cdmpp.networks.gpu_operators import network_sums
from cdmpp.networks.graph.torch_graph import torch_graph

CALLS = sweep_calls()
NEW = replace(get_device("h100"), name="my-gpu", launch_s=None)
#: The made-up GPU takes so many times what the models predict.
SLOWER: Mapping[str, float] = {"gemm": 1.5, "prefill": 2.0, "decode": 0.9, "operator": 1.25}
ASKED = [Gemm(96, 5120, 2048), PrefillAttention(2, 1500, 32, 8, 128)]


class FakeKernels:
    """Calls stand for themselves; some cannot be run."""

    def prepare(self, call: SweepCall) -> Any:
        if isinstance(call, Gemm) and call.dtype == "fp8":
            raise RuntimeError("no fp8 here")
        return call


class FakeTimer:
    """What a made-up GPU would take, and how many calls it was asked."""

    def __init__(self, device: DeviceSpec, most: int = 10**9) -> None:
        self.seconds = {
            json.dumps(call_json(call)): one * SLOWER.get(sweep_family(call), 1.0)
            for call, one in zip(CALLS, expected_s(CALLS, device), strict=True)
        }
        self.asked, self.most = 0, most

    def times_s(self, run: Any, repeats: int, *, calls: int, mode: TimingMode) -> list[float]:
        if self.asked >= self.most:
            raise KeyboardInterrupt
        self.asked += 1
        middle = self.seconds[json.dumps(call_json(run))]
        return [middle * factor for factor in (0.98, 1.0, 1.02, 1.0, 1.0)]


@pytest.fixture(autouse=True)
def rules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules of every family, few trees: what the package has of them is another matter."""
    rule = FamilyRules(CorrectionOptions(trees=60, rate=0.1), 1.5)
    families = dict.fromkeys(("gemm", "prefill", "decode", "matmul", "row-wise"), rule)
    monkeypatch.setattr(predict, "packaged_rules", lambda: SweepRules(families))


@pytest.fixture(scope="module")
def added(tmp_path_factory: pytest.TempPathFactory) -> tuple[DeviceSpec, Sweep, Path]:
    folder = tmp_path_factory.mktemp("added")
    return run_sweep(NEW, folder, FakeKernels(), FakeTimer(NEW), minutes=60, about={"gpu": "made"})


def test_the_list_is_fixed_and_covers_every_family_early() -> None:
    assert sweep_calls() == CALLS
    assert len(set(map(repr, CALLS))) == len(CALLS)
    assert {sweep_family(call) for call in CALLS[:12]} == {
        "gemm", "prefill", "decode", "operator", "launch",
    }  # fmt: skip
    products = [call for call in CALLS if isinstance(call, Gemm)]
    assert {call.dtype for call in products} == {"bfloat16", "float16", "fp8", "fp8_static"}
    flop = np.log2([2.0 * call.m * call.n * call.k for call in products])
    assert flop.min() < 20
    assert flop.max() > 40
    assert [call_of(json.loads(json.dumps(call_json(call)))) for call in CALLS] == CALLS


def test_the_list_takes_about_five_minutes() -> None:
    seconds = sum(plan_of(*one).seconds for one in zip(CALLS, expected_s(CALLS, NEW), strict=True))
    assert 60 < seconds < 330


@pytest.mark.parametrize(
    "call",
    [
        Gemm(8, 16, 32), Gemm(8, 16, 32, "float16"), PrefillAttention(2, 8, 4, 2, 16),
        DecodeAttention(2, 8, 4, 2, 16), Move(4096), Move(4),
        Fp32Operator("linear", {"batch": 1, "m": 4, "n": 8, "k": 16}),
        Fp32Operator("bmm", {"batch": 2, "m": 4, "n": 8, "k": 16}),
        *(
            Fp32Operator(kind, {"rows": 4, "cols": 8})
            for kind in ("softmax", "ln", "add", "divu", "powu", "relu", "tanh", "gelu")
        ),
    ],
)  # fmt: skip
def test_torch_runs_the_calls(call: SweepCall) -> None:
    torch = pytest.importorskip("torch")
    run = TorchLauncher(torch, "cpu").prepare(call)
    run()
    if isinstance(call, Gemm):
        assert tuple(run().shape) == (call.m, call.n)


def test_a_type_without_a_kernel_is_refused() -> None:
    torch = pytest.importorskip("torch")
    with pytest.raises(DataError, match="no kernel here for products in nvfp4"):
        TorchLauncher(torch, "cpu").prepare(Gemm(8, 16, 32, "nvfp4"))


def test_the_noise_is_half_of_the_distance_of_the_quartiles() -> None:
    assert median_and_noise([1.0, 2.0, 3.0]) == (2.0, 0.25)


def test_a_sweep_continues_after_a_kill(tmp_path: Path) -> None:
    calls = CALLS[:30]
    timer = FakeTimer(NEW, most=8)
    with pytest.raises(KeyboardInterrupt):
        run_sweep(NEW, tmp_path, FakeKernels(), timer, minutes=5, about={}, calls=calls)
    lines = (tmp_path / JOURNAL).read_text().splitlines()
    with (tmp_path / JOURNAL).open("a") as file:
        file.write('{"call": {"family"')  # cut off by the kill
    timer = FakeTimer(NEW)
    run_sweep(NEW, tmp_path, FakeKernels(), timer, minutes=5, about={}, calls=calls)
    assert (tmp_path / JOURNAL).read_text().splitlines()[: len(lines)] == lines
    again = FakeTimer(NEW)
    _, sweep, _ = run_sweep(NEW, tmp_path, FakeKernels(), again, minutes=5, about={}, calls=calls)
    assert again.asked == 0
    assert len(sweep.calls) + len(sweep.failed) == len(calls)
    assert {reason for _, reason in sweep.failed} == {"no fp8 here"}


def test_a_rerun_repeats_failed_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def run() -> Sweep:
        timer = FakeTimer(NEW)
        return run_sweep(
            NEW, tmp_path, FakeKernels(), timer, minutes=5, about={}, calls=CALLS[:30]
        )[1]

    assert run().failed
    monkeypatch.setattr(FakeKernels, "prepare", lambda _, call: call)
    assert not run().failed


def test_the_time_ends_a_sweep(tmp_path: Path) -> None:
    seconds = iter(range(0, 10_000, 10))
    clock: Callable[[], float] = lambda: float(next(seconds))  # noqa: E731
    _, sweep, _ = run_sweep(
        NEW, tmp_path, FakeKernels(), FakeTimer(NEW), minutes=1, about={}, clock=clock
    )
    assert 1 <= len(sweep.calls) < 10
    assert "out of time" in {reason for _, reason in sweep.failed}


def test_nothing_measured_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(DeviceError, match=r"none of the 1 reference kernels .* \(no fp8 here\)"):
        run_sweep(
            NEW, tmp_path, FakeKernels(), FakeTimer(NEW), minutes=1, about={},
            calls=[Gemm(8, 16, 32, "fp8")],
        )  # fmt: skip


@pytest.mark.exhaustive
def test_the_sweep_corrects_kernels_and_operators(added: tuple[DeviceSpec, Sweep, Path]) -> None:
    device, sweep, path = added
    assert load_device_spec(path).kernel_sweep == device.kernel_sweep
    assert Sweep.load(Path(str(device.kernel_sweep))).calls == sweep.calls
    swept, plain = SweptKernels.packaged(), GpuKernels.packaged()
    found, before = swept.times(ASKED, device), plain.times(ASKED, device)
    ratio = found.latency_s / before.latency_s
    assert ratio == pytest.approx([1.5, 2.0], rel=0.02)
    assert np.all(found.high_s / found.low_s < before.high_s / before.low_s)
    assert np.all(found.low_s >= found.floor_s)
    linear = Fp32Operator("linear", {"batch": 1, "m": 300, "n": 700, "k": 900})
    correction = SweptOperators.packaged().correction(operators_of([linear]), device)
    assert correction is not None
    assert correction[0] == pytest.approx([1.25], rel=0.02)


@pytest.mark.exhaustive
def test_the_sweep_corrects_torch_networks_in_float32(
    added: tuple[DeviceSpec, Sweep, Path],
) -> None:
    device, _, _ = added
    graph = torch_graph(lambda: nn.Linear(900, 700), [(900,)], batch=300, name="product")
    (found, *ends), (before, *wider) = (
        network_sums(graph, one).total() for one in (device, replace(device, kernel_sweep=None))
    )
    assert found / before == pytest.approx(1.25, rel=0.02)
    assert ends[1] / ends[0] != pytest.approx(wider[1] / wider[0], rel=0.02)


def test_what_the_sweep_did_not_measure_stays(added: tuple[DeviceSpec, Sweep, Path]) -> None:
    device, _, _ = added
    swept, plain = SweptKernels.packaged(), GpuKernels.packaged()
    calls = [Gemm(96, 5120, 2048, "fp8"), PrefillAttention(2, 1500, 32, 8, 128, window=128)]
    assert swept.corrected(calls, device) == [False, False]
    assert swept.times(calls, device).latency_s == pytest.approx(
        plain.times(calls, device).latency_s
    )
    assert swept.corrected(ASKED, device, software="trtllm") == [True, False]
    without = replace(device, kernel_sweep=None)
    assert swept.times(ASKED, without).latency_s == pytest.approx(
        plain.times(ASKED, without).latency_s
    )


def test_the_package_has_rules_of_families_that_were_simulated() -> None:
    families = packaged_rules().families
    assert {"prefill", "decode"} <= set(families) <= {*CORRECTED, "matmul", "row-wise"}
    assert all(rule.widening >= 1.0 for rule in families.values())


def test_a_family_without_rules_is_not_corrected(
    added: tuple[DeviceSpec, Sweep, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(predict, "packaged_rules", lambda: SweepRules({}))
    assert SweptKernels(GpuKernels.packaged()).corrected(ASKED, added[0]) == [False, False]


def test_torch_is_predicted_from_the_packaged_sweep() -> None:
    """On its own GPU and, with wider intervals, on another; other software stays as it was."""
    swept, plain = SweptKernels(GpuKernels.packaged()), GpuKernels.packaged()
    measured = [one for one in packaged_sweep().calls if isinstance(one.call, PrefillAttention)]
    calls: list[GpuCall] = [one.call for one in measured]  # type: ignore[misc]
    seconds = np.array([one.latency_s for one in measured])
    h200, h100 = get_device("h200"), get_device("h100")
    found, before = swept.times(calls, h200, software="torch"), plain.times(calls, h200)
    errors = [np.median(np.abs(one.latency_s / seconds - 1.0)) for one in (found, before)]
    assert errors[0] < 0.5 * errors[1]
    assert found.is_seen_device
    assert found.versions[0] == "torch 2.11.0 on h200"
    other = swept.times(calls, h100, software="torch")
    assert not other.is_seen_device
    assert np.all(other.high_s / other.low_s > found.high_s / found.low_s)
    assert swept.times(calls, h100).latency_s == pytest.approx(plain.times(calls, h100).latency_s)


def test_a_sweep_by_torch_answers_for_torch(added: tuple[DeviceSpec, Sweep, Path]) -> None:
    swept = SweptKernels(GpuKernels.packaged())
    own, any_software = (swept.times(ASKED, added[0], software=one) for one in ("torch", None))
    assert own.latency_s == pytest.approx(any_software.latency_s)
    assert own.is_seen_device


@pytest.mark.parametrize(
    ("call", "device", "words"),
    [
        (Gemm(8, 64, 64, "fp8_block"), "h200", "no measured kernel for Gemm"),
        (Gemm(8, 64, 64, "fp8"), "a100-sxm", "no measured kernel for Gemm"),
        (PrefillAttention(1, 64, 8, 8, 64, window=32), "h200", "no measured kernel for Prefill"),
        (Gemm(8, 64, 64), "mi300x", "torch was measured on NVIDIA GPUs"),
    ],
)
def test_torch_is_refused_where_it_was_not_measured(call: GpuCall, device: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        SweptKernels(GpuKernels.packaged()).times([call], get_device(device), software="torch")


def test_the_packaged_sweep_corrects_isolated_operators_of_its_gpu() -> None:
    swept = SweptOperators(packaged_operators().model)
    one = operators_of([Fp32Operator("softmax", {"rows": 4096, "cols": 1024})])
    h200 = get_device("h200")
    assert swept.correction(one, h200, is_isolated=True) is not None
    assert swept.correction(one, h200) is None
    assert swept.correction(one, get_device("h100"), is_isolated=True) is None


def test_a_damaged_sweep_is_refused(added: tuple[DeviceSpec, Sweep, Path], tmp_path: Path) -> None:
    device, sweep, _ = added
    path = tmp_path / "x.sweep.json"
    sweep.save(path)
    value = json.loads(path.read_text())
    value["calls"][0]["latency_s"] = -1.0
    path.write_text(json.dumps(value))
    with pytest.raises(DataError, match=r"latency_s is -1\.0, expected positive seconds"):
        SweptKernels.packaged().times(ASKED, replace(device, kernel_sweep=str(path)))


def test_a_correction_learns_what_depends_on_the_call() -> None:
    rng = np.random.default_rng(0)
    inputs = rng.random((200, 3))
    logs = 0.5 + 0.4 * (inputs[:, 0] > 0.5) + 0.01 * rng.standard_normal(200)
    options = CorrectionOptions()
    held = left_out_logs(inputs, logs, options)
    assert np.abs(held).mean() < 0.3 * np.abs(logs - np.median(logs)).mean()
    one = fit_correction(inputs[:20], logs[:20], options)
    assert one.booster is None
    assert one.logs(inputs[:2]) == pytest.approx([np.median(logs[:20])] * 2)


def test_the_command_adds_a_gpu_and_later_commands_use_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def here(name: str) -> tuple[Any, ...]:
        told = DeviceSpec(name, "gpu", vendor="NVIDIA", sources={"vendor": "name of it (NVIDIA X)"})
        return FakeKernels(), FakeTimer(NEW), told, {"gpu": "NVIDIA X"}

    monkeypatch.setattr(command, "gpu_here", here)
    sheet = tmp_path / "sheet.yaml"
    from cdmpp.devices.write_file import device_file_text

    out = tmp_path / "run"
    add = ["device", "add", "my-gpu", "--sweep", "--device-spec", str(sheet), "--out", str(out)]
    sheet.write_text("devices:\n  box:\n    kind: cpu\n")
    assert main(add) == 4
    assert "kind is 'cpu', expected 'gpu'" in capsys.readouterr().err
    sheet.write_text(device_file_text(replace(NEW, name="sheet"), comment="A data sheet."))
    assert main([*add, "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    path = Path(said["device_file"])
    assert path == out / "devices" / "my-gpu.yaml"
    assert (path.parent / "my-gpu.sweep.json").is_file()
    ask = ["analytic", "kernels", "predict", "--kernel", "gemm", "--json"]
    ask += ["--call", "m=96,n=5120,k=2048", "--device-spec"]
    assert main([*ask, str(path)]) == 0
    swept = json.loads(capsys.readouterr().out)[0]
    assert main([*ask, str(sheet)]) == 0
    plain = json.loads(capsys.readouterr().out)[0]
    assert swept["is_corrected_by_sweep"]
    assert not plain["is_corrected_by_sweep"]
    assert swept["latency_s"] == pytest.approx(1.5 * plain["latency_s"], rel=0.02)
    shape = "layers=2,width=4096,heads=32,kv_heads=8,ffn=14336,vocab=128256"
    rows = []
    for file in (path, sheet):
        assert main(["compare", "--transformer", shape, "--prefill", "1500", "--json",
                     "--device-spec", str(file)]) == 0  # fmt: skip
        rows.append(json.loads(capsys.readouterr().out)[0])
    assert rows[0]["latency_s"] > 1.3 * rows[1]["latency_s"]


def test_without_a_gpu_there_is_one_sentence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert main(["device", "add", "my-gpu", "--sweep", "--out", str(tmp_path / "run")]) != 0
    error = capsys.readouterr().err
    assert "sees no CUDA GPU here" in error
    assert "Traceback" not in error
