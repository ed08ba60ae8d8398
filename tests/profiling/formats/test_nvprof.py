"""nvprof: summary in both layouts and as CSV, launches, metrics; units and short names."""

from __future__ import annotations

import pytest

from cdmpp.errors import DataError
from cdmpp.profiling.formats.names import short_name
from cdmpp.profiling.formats.units import seconds, size_bytes
from cdmpp.profiling.merge import merge_profiles
from cdmpp.profiling.read import read_profile

OLD = """==7272== NVPROF is profiling process 7272, command: ./test
==7272== Warning: Unified Memory Profiling is not supported on this device
==7272== Profiling application: ./test

==7272== Profiling result:
Time(%)      Time     Calls       Avg       Min       Max  Name
 27.60%  9.6305ms         5  1.9261ms  3.4560us  6.4035ms  [CUDA memcpy HtoD]
 26.07%  9.0957ms         1  9.0957ms  9.0957ms  9.0957ms  KeBilinearInterpBw
 23.78%  8.2977ms         1  8.2977ms  8.2977ms  8.2977ms  KeBilinearInterpFw
 22.55%  7.8661ms         2  3.9330ms  1.5798ms  6.2863ms  [CUDA memcpy DtoH]

==7272== API calls:
Time(%)      Time     Calls       Avg       Min       Max  Name
 53.15%  774.30ms         1  774.30ms  774.30ms  774.30ms  cudaMalloc
 46.85%  682.28ms         8  85.285ms  12.639us  682.03ms  cudaStreamCreateWithFlags
"""

NEW = """==1== Profiling result:
            Type  Time(%)      Time     Calls       Avg       Min       Max  Name
 GPU activities:   98.33%  1.45630s       348  4.1848ms  1.2500us  1.40000s  void gemm<float, int=3>(float const *, int)
                    1.67%  24.733ms         1  24.733ms  24.733ms  24.733ms  [CUDA memset]
      API calls:   99.97%  580.00ms         4  145.00ms     302ns  550.27ms  cudaFree
                    0.03%  435.73us       348  1.2520us     124ns  42.704us  cuDeviceGetAttribute
"""  # noqa: E501

CSV = """==1== Profiling result:
"Type","Time(%)","Time","Calls","Avg","Min","Max","Name"
,%,ms,,ms,us,ms,
"GPU activities",55.0,9.6305,5,1.9261,3.456,6.4035,"[CUDA memcpy HtoD]"
"GPU activities",45.0,7.866,2,3.933,1579.8,6.2863,"void f<int, 3>(a, b)"
"API calls",100.0,680.0,8,85.0,12.639,600.0,"cudaLaunch"
"""

TRACE = """==27706== Profiling result:
   Start  Duration            Grid Size      Block Size     Regs*    SSMem*    DSMem*      Size  Throughput  SrcMemType  DstMemType           Device   Context    Stream  Name
133.81ms  135.78us                    -               -         -         -         -  1.0000MB  7.1919GB/s    Pageable      Device  GeForce GT 640M (0)         1         2  [CUDA memcpy HtoD]
134.62ms  640ns              (20 10 1)       (32 32 1)        29  8.0000KB        0B         -           -           -           -  GeForce GT 640M (0)         1         2  void matrixMul<int=32>(float*, float*, int) [94]
134.80ms  660ns              (20 10 1)       (32 32 1)        29  8.0000KB        0B         -           -           -           -  GeForce GT 640M (0)         1        13  void matrixMul<int=32>(float*, float*, int) [98]

Regs: Number of registers used per CUDA thread. This number includes registers used internally.
SSMem: Static shared memory allocated per CUDA block.
DSMem: Dynamic shared memory allocated per CUDA block.
"""  # noqa: E501

TRACE_CSV = """==1== Profiling result:
"Start","Duration","Grid X","Grid Y","Grid Z","Block X","Block Y","Block Z","Registers Per Thread","Static SMem","Dynamic SMem","Size","Throughput","SrcMemType","DstMemType","Device","Context","Stream","Name","Correlation_ID"
s,us,,,,,,,,KB,KB,MB,GB/s,,,,,,,
0.13381,135.78,,,,,,,,,,1.0,7.1,"Pageable","Device","Tesla T4 (0)","1","7","[CUDA memcpy HtoD]",5
0.13462,640.0,20,10,1,32,32,1,29,8.0,0.0,,,,,"Tesla T4 (0)","1","7","kernel(int)",6
"""  # noqa: E501

METRICS = """==5== Metric result:
Invocations                               Metric Name                        Metric Description         Min         Max         Avg
Device "Tesla T4 (0)"
    Kernel: void matrixMul<int=32>(float*, float*, int)
          2                             flop_count_sp  Floating Point Operations(Single Precision)   13107200   13107200    13107200
          2                    dram_read_transactions           Device Memory Read Transactions        2000        2000        2000
          2                   dram_write_transactions          Device Memory Write Transactions        1000        1000        1000
          2                    warp_execution_efficiency                   Warp Execution Efficiency      45.00%      45.00%      45.00%
          2                          dram_utilization                 Device Memory Utilization     Mid (5)     Mid (5)     Mid (5)
"""  # noqa: E501


def read(tmp_path, text, name="profile.txt"):
    path = tmp_path / name
    path.write_text(text)
    return read_profile(path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("682.28ms", 0.68228), ("9.0957ms", 0.0090957), ("1.2500us", 1.25e-6), ("640ns", 6.4e-7),
        ("1.45630s", 1.4563), ("1,250.5us", 1.2505e-3), ("2e3ns", 2e-6),
    ],
)  # fmt: skip
def test_units(text, expected):
    assert seconds(text) == expected


@pytest.mark.parametrize("text", ["12", "ms", "", "1.2.3ms", "5 parsecs"])
def test_what_is_no_time(text):
    with pytest.raises(ValueError):  # noqa: PT011
        seconds(text)


def test_sizes():
    assert size_bytes("3.0518KB") == pytest.approx(3125.0, abs=0.1)
    assert size_bytes("2", "Kbyte/block", is_binary=False) == 2000.0
    assert size_bytes("0B") == 0.0


@pytest.mark.parametrize(
    ("name", "short"),
    [
        ("void at::native::f<4, g<float>, h<1>>(int, g<float>)", "at::native::f"),
        ("[CUDA memcpy HtoD]", "[CUDA memcpy HtoD]"),
        ("KeBilinearInterpBw", "KeBilinearInterpBw"),
        ("volta_sgemm_128x64_nn", "volta_sgemm_128x64_nn"),
        ("void (anonymous namespace)::k<int>(int*)", "k"),
        ("load the data", "load the data"),
        ("f(int", "f(int"),
        ("", ""),
    ],
)
def test_short_names(name, short):
    assert short_name(name) == short


def test_old_layout(tmp_path):
    profile = read(tmp_path, OLD)
    rows = {row.name: row for row in profile.rows}
    gpu = [row for row in profile.rows if row.kind != "api"]
    assert sum(row.total_s for row in gpu) == pytest.approx(34.89e-3, abs=1e-6)
    assert sum(row.percent for row in gpu) == pytest.approx(100.0)
    assert rows["[CUDA memcpy HtoD]"].kind == "memcpy"
    assert rows["KeBilinearInterpBw"].kind == "kernel"
    api = rows["cudaStreamCreateWithFlags"]
    assert (api.kind, api.calls, api.total_s, api.min_s, api.max_s) == (
        "api", 8, 0.68228, 12.639e-6, 0.68203,
    )  # fmt: skip
    assert profile.notes == ("Warning: Unified Memory Profiling is not supported on this device",)


def test_new_layout_with_templates_and_one_label_a_block(tmp_path):
    rows = read(tmp_path, NEW).rows
    assert [(row.kind, row.short_name) for row in rows] == [
        ("kernel", "gemm"), ("memset", "[CUDA memset]"), ("api", "cudaFree"),
        ("api", "cuDeviceGetAttribute"),
    ]  # fmt: skip
    assert rows[0].total_s == 1.4563
    assert rows[2].min_s == 3.02e-7


def test_csv(tmp_path):
    rows = read(tmp_path, CSV, "a.csv").rows
    assert [(row.kind, row.calls) for row in rows] == [("memcpy", 5), ("kernel", 2), ("api", 8)]
    assert (rows[1].total_s, rows[1].min_s) == (7.866e-3, 1.5798e-3)


def test_what_does_not_add_up_is_noted(tmp_path):
    notes = read(
        tmp_path, OLD.replace(" 26.07%  9.0957ms         1", " 26.07%  9.0957ms         3")
    ).notes
    assert any("KeBilinearInterpBw: total is not calls times mean" in note for note in notes)


def test_truncated_output_keeps_the_rows_and_says_so(tmp_path):
    cut = NEW[: NEW.index("550.27ms")]
    profile = read(tmp_path, cut)
    assert len(profile.rows) == 2
    assert any("truncated" in note for note in profile.notes)
    cut = OLD[: OLD.index(" 23.78%")]
    assert any("truncated" in note for note in read(tmp_path, cut).notes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (OLD.replace("9.0957ms         1  9", "9.0957ms         x  9"), "line 8: cannot read"),
        (NEW.replace("302ns", "302"), "line 5: cannot read unit of time ''"),
        ("\n".join(OLD.splitlines()[:6]), "without rows"),
        (OLD + TRACE, "holds tables of several kinds"),
    ],
)
def test_one_clear_error(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_launches(tmp_path):
    profile = read(tmp_path, TRACE)
    copy, kernel = profile.rows
    assert (copy.kind, copy.moved_bytes, copy.total_s) == ("memcpy", 2.0**20, 135.78e-6)
    assert (kernel.calls, kernel.total_s) == (2, pytest.approx(1.3e-6))
    assert kernel.name == "void matrixMul<int=32>(float*, float*, int)"
    assert (kernel.launch.grid, kernel.launch.block) == ((20, 10, 1), (32, 32, 1))
    assert (kernel.launch.registers_per_thread, kernel.launch.shared_bytes) == (29, 8192)
    assert profile.device_name == "GeForce GT 640M"
    assert profile.events.lanes == ("GeForce GT 640M (0) stream 2", "GeForce GT 640M (0) stream 13")
    assert profile.events.start_s[1] == pytest.approx(0.81e-3)


def test_launches_as_csv(tmp_path):
    profile = read(tmp_path, TRACE_CSV, "t.csv")
    copy, kernel = profile.rows
    assert copy.moved_bytes == 2.0**20
    assert kernel.launch.shared_bytes == 8192
    assert kernel.total_s == pytest.approx(640e-6)
    assert profile.device_name == "Tesla T4"


def test_metrics_and_times_of_one_program(tmp_path):
    metrics = read(tmp_path, METRICS, "m.txt")
    row = metrics.rows[0]
    assert (row.flop, row.moved_bytes) == (2 * 13107200.0, 2 * 3000 * 32.0)
    assert row.metrics["warp_execution_efficiency"] == 0.45
    assert row.metrics["dram_utilization"] == "Mid (5)"
    both = merge_profiles([read(tmp_path, TRACE), metrics])
    kernel = next(row for row in both.rows if row.kind == "kernel")
    assert (kernel.flop, kernel.calls) == (2 * 13107200.0, 2)
    assert len(both.rows) == 2


def test_metrics_as_csv(tmp_path):
    text = (
        '"Device","Kernel","Invocations","Metric Name","Metric Description","Min","Max","Avg"\n'
        '"Tesla T4 (0)","f(int)",3,"flop_count_sp","Operations",5,5,5\n'
    )
    profile = read(tmp_path, text, "m.csv")
    assert (profile.rows[0].flop, profile.device_name) == (15.0, "Tesla T4")
