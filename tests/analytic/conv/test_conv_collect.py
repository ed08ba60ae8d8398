"""The collector, on a stand-in for the libraries: what needs a GPU is not measured here."""

from __future__ import annotations

import ctypes
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from cdmpp.analytic.conv.algorithms import ConvAlgorithm
from cdmpp.analytic.conv.collect.cudnn_collect import (
    CollectOptions,
    collect,
    original_grid,
    read_layer_list,
)
from cdmpp.analytic.conv.collect.cudnn_counters import (
    METRICS,
    ncu_command,
    parse_ncu,
    read_kernel_names,
    tables_of,
)
from cdmpp.analytic.conv.collect.cudnn_library import CudnnError, CudnnLibrary
from cdmpp.analytic.conv.collect.cudnn_profile import profile, run_command
from cdmpp.analytic.conv.collect.torch_operators import time_operators
from cdmpp.analytic.conv.seer.workbook import read_workbook, write_workbook
from cdmpp.analytic.conv.shapes import SHAPE_NAMES, ConvShapes
from cdmpp.errors import DataError, DeviceError, UsageError
from tests.analytic.conv.cudnn_recording import Recording
from tests.paths import shared

SMALL = (8, 16, 20, 32, 3, 1, 1)
STRIDED = (8, 16, 20, 32, 3, 2, 1)
TIMES = {
    SMALL: {0: 2.0, 1: 1.0, 2: 3.0, 4: 4.0, 6: 0.5, 7: 0.75},
    STRIDED: {0: 1.0, 1: 0.5, 2: 1.5},
}
LAYERS = ConvShapes.of(*(np.array(column) for column in zip(SMALL, STRIDED, strict=True)))


def test_every_algorithm_that_a_layer_allows() -> None:
    recording = Recording(TIMES)
    library = CudnnLibrary(recording, recording)
    assert library.version == 91002
    found = list(collect(library, LAYERS, CollectOptions(repeats=5, warmups=2)))
    measured = {(c.row, c.algorithm): c.time_ms for c in found if c.time_ms is not None}
    assert measured == {
        (row, number): time_ms
        for row, key in enumerate((SMALL, STRIDED))
        for number, time_ms in TIMES[key].items()
    }
    refused = [c for c in found if c.time_ms is None]
    assert [(c.row, c.algorithm) for c in refused] == [(0, int(ConvAlgorithm.FFT_TILING))]
    assert "CUDNN_STATUS_NOT_SUPPORTED" in refused[0].reason
    assert set(recording.math_types) == {3}
    assert len(recording.forwards) == 7 * len(measured)
    library.close()
    assert not recording.alive


def test_cudnn_chooses() -> None:
    recording = Recording(TIMES, choice=7)
    library = CudnnLibrary(recording, recording)
    found = list(collect(library, LAYERS[np.array([0])], CollectOptions(is_free=True)))
    assert [(c.algorithm, c.time_ms) for c in found] == [(7, 0.75)]


def test_caches_are_flushed_before_every_timed_run() -> None:
    recording = Recording(TIMES)
    options = CollectOptions(algorithms=(1,), repeats=4, warmups=1, flush_bytes=1 << 20)
    list(collect(CudnnLibrary(recording, recording), LAYERS[np.array([0])], options))
    assert recording.calls.count("cudaMemcpyAsync") == 5
    copies = [i for i, name in enumerate(recording.calls) if name == "cudaMemcpyAsync"]
    assert all(recording.calls[i + 1] == "cudaEventRecord" for i in copies)


def test_workspaces_are_freed_after_each_algorithm() -> None:
    recording = Recording(TIMES, workspace_bytes=1 << 20, memory_bytes=7 << 20)
    options = CollectOptions(flush_bytes=2 << 20)
    found = list(collect(CudnnLibrary(recording, recording), LAYERS[np.array([0])], options))
    assert {c.algorithm for c in found if c.time_ms is not None} == set(TIMES[SMALL])


def test_what_does_not_fit_is_left_out_and_everything_is_freed() -> None:
    recording = Recording(TIMES, memory_bytes=1000)
    library = CudnnLibrary(recording, recording)
    found = list(collect(library, LAYERS))
    assert [c.time_ms for c in found] == [None, None]
    assert "out of memory" in found[0].reason
    library.close()
    assert not recording.alive
    # What the runtime remembers of a failure must not fail the next layer.
    large = (64, 16, 300, 32, 3, 1, 1)
    recording = Recording({**TIMES, large: {1: 9.0}}, memory_bytes=1 << 24)
    layers = ConvShapes.of(*(np.array(column) for column in zip(large, SMALL, strict=True)))
    options = CollectOptions(algorithms=(1,))
    found = list(collect(CudnnLibrary(recording, recording), layers, options))
    assert [c.time_ms for c in found] == [None, 1.0]
    recording = Recording({large: {1: 9.0}})
    found = list(collect(CudnnLibrary(recording, recording), layers[np.array([0])], options))
    assert found[0].time_ms == 9.0
    recording = Recording(TIMES, workspace_bytes=5000)
    options = CollectOptions(algorithms=(1,), max_workspace_bytes=4999)
    found = list(collect(CudnnLibrary(recording, recording), LAYERS, options))
    assert "needs 5000 bytes of workspace" in found[0].reason
    with pytest.raises(CudnnError, match="cudnnCreate failed with status 1"):
        CudnnLibrary(_Refusing(), _Refusing())


class _Refusing:
    """A library that cannot start."""

    class Text:
        restype: object = None

        def __call__(self, status: int) -> bytes:
            return b"CUDNN_STATUS_NOT_INITIALIZED"

    def __init__(self) -> None:
        self.cudnnGetErrorString = self.Text()
        self.cudaGetLastError = int

    def cudnnCreate(self, handle: object) -> int:  # noqa: N802
        return 1


def test_lists_of_layers_come_back(tmp_path: Path) -> None:
    path = tmp_path / "Test-set-II.txt"
    rows = [[getattr(LAYERS, name)[row] for name in SHAPE_NAMES] for row in range(len(LAYERS))]
    assert rows[0] == [8, 16, 20, 32, 20, 3, 1, 1]
    path.write_text("\n".join([str(len(rows)), *(" ".join(map(str, row)) for row in rows)]))
    found = read_layer_list(path)
    assert all(np.array_equal(getattr(found, n), getattr(LAYERS, n)) for n in SHAPE_NAMES)
    path.write_text("# sizes\n1\n\n8 16 20 32 20 3 1 1  # the first\n")
    assert len(read_layer_list(path)) == 1
    path.write_text("# sizes\n1\n# a layer\n8 16 20 32 19 3 1 1\n")
    with pytest.raises(DataError, match="line 4 has output width 19"):
        read_layer_list(path)
    path.write_text("3\n8 16 20 32 20 3 1 1\n")
    with pytest.raises(DataError, match="got 1 lines after the first"):
        read_layer_list(path)
    for text in ("", "0\n"):
        path.write_text(text)
        with pytest.raises(DataError, match="got 0 lines after the first"):
            read_layer_list(path)
    path.write_text("1\n8 16 20 32 19 3 1 1\n")
    with pytest.raises(DataError, match="has output width 19; expected from its other numbers: 20"):
        read_layer_list(path)


def test_the_grids_of_the_original() -> None:
    sizes = {a: len(original_grid(a)) for a in ConvAlgorithm if a != ConvAlgorithm.DIRECT}
    assert sizes[ConvAlgorithm.IMPLICIT_GEMM] == 6**3 * 5 * 4
    assert sizes[ConvAlgorithm.FFT_TILING] == 6**3 * 5
    assert sizes[ConvAlgorithm.FFT] == 6**2 * 5 * 5  # widths up to 256 only
    assert sizes[ConvAlgorithm.WINOGRAD] == 6**3
    assert sizes[ConvAlgorithm.WINOGRAD_NONFUSED] == 6**3 * 2
    with pytest.raises(UsageError, match="DIRECT"):
        original_grid(ConvAlgorithm.DIRECT)


def ncu_output(names: Sequence[str]) -> str:
    """Returns what ncu prints for some launches."""
    units = dict.fromkeys(METRICS, "") | {"gpu__time_duration.sum": "ns"}
    values = {
        "gpu__time_duration.sum": "1,500,000",
        "smsp__sass_thread_inst_executed_op_fp32_pred_on.sum": "8,000,000",
        "dram__sectors_read.sum": "4,000",
        "dram__sectors_write.sum": "2,000",
        "dram__throughput.avg.pct_of_peak_sustained_elapsed": "31.5",
        "smsp__pipe_fma_cycles_active.avg.pct_of_peak_sustained_active": "85",
        "launch__grid_size": "784",
        "launch__occupancy_limit_blocks": "16",
        "launch__occupancy_limit_registers": "4",
        "launch__occupancy_limit_shared_mem": "5",
        "launch__occupancy_limit_warps": "8",
        "device__attribute_multiprocessor_count": "40",
    }
    lines = [
        "==PROF== Connected to process 1",
        ",".join(f'"{c}"' for c in ("ID", "Kernel Name", *METRICS)),
    ]
    lines.append(",".join(f'"{c}"' for c in ("", "", *units.values())))
    for index, name in enumerate(names):
        cells = (str(index), name, *(values[metric] for metric in METRICS))
        lines.append(",".join(f'"{cell}"' for cell in cells))
    return "\n".join(lines)


def test_counters_are_parsed() -> None:
    found = parse_ncu(ncu_output(["volta_scudnn_128x64_relu_small_nn_v1"]))[0]
    assert found.time_ms == pytest.approx(1.5)
    assert (found.blocks, found.resident) == (784, 160)
    assert found.fp32_level == pytest.approx(8.5)
    assert found.dram_level == pytest.approx(3.15)
    assert (found.dram_reads, found.dram_writes) == (4000, 2000)
    command = ncu_command(["python", "x.py"])
    assert command[-2:] == ["python", "x.py"]
    assert command[command.index("--clock-control") + 1] == "none"
    with pytest.raises(DataError, match="ERR_NVGPUCTRPERM"):
        parse_ncu("==ERROR== ERR_NVGPUCTRPERM")
    with pytest.raises(DataError, match="has no table"):
        parse_ncu("nothing")
    with pytest.raises(DataError, match="lacks dram__sectors_read"):
        parse_ncu(ncu_output(["k"]).replace("dram__sectors_read.sum", "other"))


def test_counters_become_workbooks(tmp_path: Path) -> None:
    commands = []

    def runner(command: Sequence[str]) -> str:
        commands.append(list(command))
        return ncu_output(
            ["im2col4d_kernel", "explicit_convolve_sgemm", "im2col4d_kernel", "mystery_kernel"]
            if command[command.index("--algorithm") + 1] == "2"
            else ["volta_scudnn_128x64_relu_small_nn_v1"]
        )

    found = profile(LAYERS, [1, 2], read_kernel_names(), math="tensor", runner=runner)
    assert set(found.tables) == {"algo1_128x64", "algo2_pre"}
    assert found.unmatched == {"mystery_kernel": 1}
    assert found.tables["algo2_pre"].time_ms.tolist() == [3.0]
    assert "8,16,20,32,3,1,1" in commands[0]
    assert commands[0][commands[0].index("--math") + 1] == "tensor"
    assert found.tables["algo1_128x64"].kernel_type.tolist() == [0]
    write_workbook(tmp_path / "algo1_128x64", {"train": found.tables["algo1_128x64"]})
    again = read_workbook(tmp_path / "algo1_128x64")["train"]
    assert again.launch.waves.tolist() == [5]
    with pytest.raises(DeviceError, match="install Nsight Compute"):
        run_command(["no-such-program-here"])


def test_kernel_names(tmp_path: Path) -> None:
    own = tmp_path / "kernels.yaml"
    own.write_text('kernels:\n  - {pattern: "my_.*64", variant: algo1_128x64}\n')
    launches = parse_ncu(ncu_output(["MY_kernel_64", "other"]))
    tables, unmatched = tables_of(launches, read_kernel_names(own))
    assert tables == ["algo1_128x64", None]
    assert unmatched == {"other": 1}
    own.write_text('kernels:\n  - {pattern: "x", variant: algo1_1x1}\n')
    with pytest.raises(DataError, match="unknown kernel variant 'algo1_1x1'"):
        read_kernel_names(own)
    own.write_text("kernels: [{}]\n")
    with pytest.raises(DataError, match="cannot read the table of kernel names"):
        read_kernel_names(own)


def test_the_shipped_names_know_real_kernels() -> None:
    import csv
    import gzip

    path = shared("neusight/train/conv.csv.gz")
    with gzip.open(path, "rt", newline="") as stream:
        names = {row["kernel_name"] for row in csv.DictReader(stream)}
    launches = parse_ncu(ncu_output(sorted(names)))
    tables, unmatched = tables_of(launches, read_kernel_names())
    found = dict(zip(sorted(names), tables, strict=True))
    assert found["volta_sgemm_128x64_nn"] == "algo7_128x64_3x3"
    assert (
        found["cudnn_infer_volta_scudnn_winograd_128x128_ldg1_ldg4_relu_tile148t_nt_v1"]
        == "algo6_148"
    )
    assert found["cudnn_infer_volta_scudnn_128x32_3dconv_fprop_small_nn_v1"] is None
    # Tiles that the model has no variant for are named, not guessed.
    assert {name.split("<")[0] for name in unmatched} <= {
        "implicit_convolve_sgemm", "precomputed_convolve_sgemm", "maxwell_sgemm_32x128_nn",
        "maxwell_sgemm_64x64_nn", "maxwell_sgemm_128x32_nn", "volta_sgemm_64x64_nn",
        "volta_sgemm_128x32_nn", "volta_sgemm_32x128_nn",
    } | {name for name in unmatched if "winograd" in name}  # fmt: skip


@pytest.mark.parametrize(
    ("operator", "names"),
    [
        ("maxpool", ["maxpool"]),
        ("maxpool_gradient", ["maxpool_gradient"]),
        ("data_layout", ["data_layout"]),
        ("conv_grad", ["conv_forward", "conv_grad_input", "conv_grad_filter"]),
    ],
)
def test_other_operators_run(operator: str, names: list[str]) -> None:
    layer = ConvShapes.of(1, 4, 8, 4, 3, 1, 1)
    found = list(time_operators(operator, layer, device="cpu"))
    assert [f.operator for f in found] == names
    assert all(f.time_ms > 0 for f in found)
    with pytest.raises(UsageError, match="unknown operator"):
        list(time_operators("softmax", layer, device="cpu"))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="1 of the 1 layers have other filters"):
        list(time_operators("conv_1x1", layer, device="cpu"))


_TOO_MUCH = (ctypes.byref(ctypes.c_void_p()), ctypes.c_size_t(1 << 40))


def test_the_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from cdmpp.cli.main import main

    out = tmp_path / "layers.csv"
    recording = Recording(TIMES)
    library = CudnnLibrary(recording, recording)
    monkeypatch.setattr("cdmpp.cli.analytic.conv_collect.open_cudnn", lambda: library)
    # The last call fails, as all do after a kernel that crashed.
    monkeypatch.setattr(library, "close", lambda: library._call("cudaMalloc", *_TOO_MUCH))
    words = ["analytic", "conv", "collect", "--layer", "8,16,20,32,3,1,1", "--gpu", "t4"]
    assert main([*words, "--out", str(out), "--json", "--repeats", "3"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["algorithm"] for row in rows if row["time_ms"]} == {
        "implicit_gemm", "implicit_precomp_gemm", "gemm", "fft", "winograd", "winograd_nonfused",
    }  # fmt: skip
    from cdmpp.analytic.conv.layers.table import read_layers

    table = read_layers(out)
    assert table.devices[0].name == "t4"
    assert len(table) == 6
    monkeypatch.setattr("cdmpp.cli.analytic.conv_collect.write_counters", lambda *_, **__: {"k": 2})
    assert main([*words, "--out", str(tmp_path), "--json", "--counters", "--repeats", "3"]) == 0
    said = capsys.readouterr()
    assert len(json.loads(said.out)) == len(rows)
    assert "no pattern matches the kernel 'k' (2 launches)" in said.err
    assert main([*words, "--limit", "0"]) == 2
    assert "--limit must be at least 1, got 0" in capsys.readouterr().err
