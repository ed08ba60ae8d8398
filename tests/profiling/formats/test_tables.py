"""Tables of nsys, ncu and CUTLASS; the texts are made after the tools' documentation."""

from __future__ import annotations

import pytest

from cdmpp.errors import DataError
from cdmpp.profiling.read import read_profile
from tests.paths import ROOT

NSYS = """Processing [out.sqlite] with [cuda_gpu_kern_sum.py]...
Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
80.0,8000,4,2000.0,2000.0,1000,3000,816.5,"void add<float>(float *, int)"
20.0,2000,1,2000.0,2000.0,2000,2000,0.0,scale

Processing [out.sqlite] with [cuda_gpu_mem_time_sum.py]...
Time (%),Total Time (us),Count,Avg (us),Med (us),Min (us),Max (us),StdDev (us),Operation
70.0,7.0,2,3.5,3.5,3.0,4.0,0.5,[CUDA memcpy Host-to-Device]
30.0,3.0,1,3.0,3.0,3.0,3.0,0.0,[CUDA memset]

Time (%),Total Time (ns),Num Calls,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Name
100.0,600,3,200.0,200.0,100,300,100.0,cudaLaunchKernel

Time (%),Total Time (ns),Instances,Avg (ns),Med (ns),Min (ns),Max (ns),StdDev (ns),Style,Range
100.0,900,3,300.0,300.0,300,300,0.0,PushPop,:step
"""

NSYS_TRACE = """Start (ns),Duration (ns),CorrId,GrdX,GrdY,GrdZ,BlkX,BlkY,BlkZ,Reg/Trd,StcSMem (MB),DymSMem (MB),Bytes (MB),Throughput (MB/s),SrcMemKd,DstMemKd,Device,Ctx,GreenCtx,Strm,Name
1000,500,1,,,,,,,,,,4.000,8000.0,Pageable,Device,NVIDIA A100-SXM4-40GB (0),1,,7,[CUDA memcpy Host-to-Device]
2000,300,2,64,1,1,256,1,1,32,0.001,0.000,,,,,NVIDIA A100-SXM4-40GB (0),1,,7,"void k<float>(int, int)"
"""  # noqa: E501

NCU = """==PROF== Connected to process 1
==PROF== Disconnected
"ID","Process ID","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes_read.sum","dram__bytes_write.sum","gpu__time_duration.sum","launch__registers_per_thread","launch__shared_mem_per_block_dynamic","launch__shared_mem_per_block_static","sm__throughput.avg.pct_of_peak_sustained_elapsed","smsp__sass_thread_inst_executed_op_ffma_pred_on.sum"
"","","","","","","","","","Mbyte","Kbyte","usecond","register/thread","Kbyte/block","byte/block","%","inst"
"0","1","void add<float>(float *)","1","7","(256, 1, 1)","(1024, 1, 1)","0","7.5","2.0","500","10.5","32","1.024","0","50.0","1,000"
"1","1","void add<float>(float *)","1","7","(256, 1, 1)","(1024, 1, 1)","0","7.5","2.0","500","11.5","32","1.024","0","70.0","1,000"
"""  # noqa: E501

CUTLASS = """Problem,Provider,OperationKind,Operation,Disposition,Status,gemm_kind,m,n,k,A,B,C,batch_count,Bytes,Flops,Flops/Byte,Runtime,GB/s,GFLOPs
1,CUTLASS,gemm,cutlass_simt_sgemm_128x128_8x2_nn_align1,passed,success,universal,1024,1024,512,f32:column,f32:column,f32:column,1,8388608,1075838976,128,0.25,31.25,4303.36
2,CUTLASS,gemm,cutlass_simt_sgemm_64x64,not_run,error_internal,universal,1024,1024,512,f32:column,f32:column,f32:column,1,8388608,1075838976,128,0,0,0
"""  # noqa: E501


def read(tmp_path, text, name="a.csv"):
    path = tmp_path / name
    path.write_text(text)
    return read_profile(path)


def test_nsys_tables_of_one_file(tmp_path):
    profile = read(tmp_path, NSYS)
    assert profile.notes == ()
    assert [(row.kind, row.short_name, row.calls) for row in profile.rows] == [
        ("kernel", "add", 4), ("kernel", "scale", 1), ("memcpy", "[CUDA memcpy Host-to-Device]", 2),
        ("memset", "[CUDA memset]", 1), ("api", "cudaLaunchKernel", 3), ("range", ":step", 3),
    ]  # fmt: skip
    assert profile.rows[0].total_s == pytest.approx(8e-6)
    assert profile.rows[2].total_s == pytest.approx(7e-6)


NSYS_TEXT = """Processing [report.sqlite] with [cuda_gpu_kern_sum.py]...

 ** CUDA GPU Kernel Summary (cuda_gpu_kern_sum):

 Time (%)  Total Time (ns)  Instances  Avg (ns)  Min (ns)  Max (ns)       Name
 --------  ---------------  ---------  --------  --------  --------  ---------------
     60.0        6,000,000        100  60,000.0    50,000    70,000  sgemm_128x64_nn
     40.0        4,000,000         50  80,000.0    70,000    90,000  add<float>(int, T2)

 ** CUDA GPU MemOps Summary (by Time) (cuda_gpu_mem_time_sum):

 Time (%)  Total Time (ns)  Count  Avg (ns)  Min (ns)  Max (ns)      Operation
 --------  ---------------  -----  --------  --------  --------  ------------------
    100.0            1,000      1   1,000.0     1,000     1,000  [CUDA memcpy HtoD]
"""
NSYS_OLDER = (
    "Time(%),Total Time (ns),Instances,Average,Minimum,Maximum,Name\n"
    "100.0,6000000,100,60000.0,50000,70000,sgemm\n"
)


def test_nsys_tables_as_text_and_of_older_versions(tmp_path):
    path = tmp_path / "nsys.txt"
    path.write_text(NSYS_TEXT)
    found = read_profile(path)
    assert [(one.kind, one.name, one.calls, one.total_s) for one in found.rows] == [
        ("kernel", "sgemm_128x64_nn", 100, 6e-3),
        ("kernel", "add<float>(int, T2)", 50, 4e-3),
        ("memcpy", "[CUDA memcpy HtoD]", 1, 1e-6),
    ]
    assert not found.notes
    path.write_text(NSYS_OLDER)
    (row,) = read_profile(path).rows
    assert (row.calls, row.total_s, row.min_s, row.max_s) == (100, 6e-3, 5e-5, 7e-5)


def test_nsys_launches(tmp_path):
    profile = read(tmp_path, NSYS_TRACE)
    copy, kernel = profile.rows
    assert copy.moved_bytes == pytest.approx(4e6)
    assert kernel.total_s == pytest.approx(300e-9)
    assert kernel.launch.shared_bytes == 1000
    assert profile.device_name == "NVIDIA A100-SXM4-40GB"


def test_ncu(tmp_path):
    row = read(tmp_path, NCU).rows[0]
    assert (row.calls, row.total_s, row.flop) == (2, pytest.approx(22e-6), 4000.0)
    assert row.moved_bytes == pytest.approx(2 * (2e6 + 5e5))
    assert (row.launch.grid, row.launch.block) == ((1024, 1, 1), (256, 1, 1))
    assert (row.launch.registers_per_thread, row.launch.shared_bytes) == (32, 1024)
    assert row.metrics["sm__throughput.avg.pct_of_peak_sustained_elapsed"] == 60.0


_ADD = '"7","add(float)","(256, 1, 1)","(1024, 1, 1)","Some Section"'
NCU_DETAILS = f"""==PROF== Connected to process 7
"ID","Process ID","Kernel Name","Block Size","Grid Size","Section Name",\
"Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type"
"0",{_ADD},"Duration","us","1,012.5",""
"0",{_ADD},"Static Shared Memory Per Block","Kbyte/block","1",""
"0",{_ADD},"Dynamic Shared Memory Per Block","byte/block","24",""
"0",{_ADD},"","","","Rule","OPT"
"1",{_ADD},"Duration","ms","1.5",""
"1",{_ADD},"Static Shared Memory Per Block","byte/block","1000",""
"1",{_ADD},"Dynamic Shared Memory Per Block","byte/block","24",""
"""


def test_the_default_page_of_ncu(tmp_path):
    """Lines of metrics are in units of their own, and shorter than those of rules."""
    (row,) = read(tmp_path, NCU_DETAILS).rows
    assert (row.name, row.calls, row.total_s) == ("add(float)", 2, pytest.approx(2512.5e-6))
    assert (row.min_s, row.max_s) == (pytest.approx(1012.5e-6), pytest.approx(1.5e-3))
    assert (row.launch.grid, row.launch.shared_bytes) == ((1024, 1, 1), 1024)


def test_products_of_tensor_cores_are_unknown():
    """Counters of twelve kernels on an H200; those of scalar instructions do not see them."""
    rows = read_profile(ROOT / "data" / "h200" / "ncu_raw.csv").rows
    flop = {row.name[:12]: row.flop for row in rows}
    assert flop["sm80_xmma_ge"] == pytest.approx(2 * 4096**3, rel=0.01)
    assert flop["nvjet_sm90_h"] is None
    assert flop["sm90_xmma_fp"] is None


_RULE = "  ".join(["-" * 30, *["-" * 12] * 7]) + "  "
_LINE = "{:>30}  " + "{:>12}  " * 7
TORCH = "\n".join([
    "some output of the program", _RULE,
    _LINE.format("Name", "Self CPU", "CPU total", "CPU time avg", "Self CUDA", "CUDA total",
                 "CUDA time avg", "# of Calls"),
    _RULE,
    _LINE.format("aten::mm", "1.000ms", "3.000ms", "1.500ms", "4.000ms", "4.000ms", "2ms", 2),
    _LINE.format("cudaLaunchKernel", "2.000ms", "2.000ms", "1.000ms", "0.000us", "0.000us", "0", 2),
    _LINE.format("sgemm_128x64", "0.000us", "0.000us", "0.000us", "4.000ms", "4.000ms", "2ms", 2),
    _LINE.format("Memcpy HtoD (Pageable -> De...", "0.000us", "0.000us", "0.000us", "5.000us",
                 "5.000us", "5us", 1),
    _RULE, "Self CPU time total: 6.000ms", "Self CUDA time total: 4.005ms", "",
])  # fmt: skip


def test_the_table_that_torch_prints(tmp_path):
    """Of a GPU: operators count the CPU's time, kernels their own, and neither counts twice."""
    profile = read(
        tmp_path, TORCH.replace("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD".rjust(30))
    )
    assert [(row.kind, row.calls, row.total_s, row.own_s) for row in profile.rows] == [
        ("cpu_op", 2, 3e-3, 1e-3),
        ("api", 2, 2e-3, 2e-3),
        ("kernel", 2, 4e-3, 4e-3),
        ("memcpy", 1, 5e-6, 5e-6),
    ]
    assert profile.notes == (
        "the table has 50 % of the time of the CPU: print it with row_limit=-1",
    )


def test_a_total_that_is_no_time_is_no_note(tmp_path):
    assert not read(tmp_path, TORCH.replace("total: 6.000ms", "total: n/a")).notes


def test_a_real_table_of_torch(tmp_path):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    with torch.profiler.profile(profile_memory=True, record_shapes=True) as profiler:
        torch.ones(8, 8) @ torch.ones(8, 8)
    averages = profiler.key_averages(group_by_input_shape=True)
    found = read(tmp_path, averages.table(row_limit=-1))
    calls = {one.key: one.count for one in averages}
    assert {row.name: row.calls for row in found.rows} == calls
    mm = next(one for one in averages if one.key == "aten::mm")
    (row,) = (row for row in found.rows if row.name == "aten::mm")
    assert row.own_s == pytest.approx(1e-6 * mm.self_cpu_time_total, rel=1e-3, abs=1e-8)
    assert not found.notes


def test_cutlass(tmp_path):
    profile = read(tmp_path, CUTLASS)
    row = profile.rows[0]
    assert (row.total_s, row.flop, row.moved_bytes) == (0.25e-3, 1075838976.0, 8388608.0)
    assert row.call.shapes == ((1, 1024, 512), (1, 512, 1024))
    assert profile.notes == ("1 kernel left out: did not run",)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (NSYS.replace("8000,4", "eight,4"), "line 3: cannot read number 'eight'"),
        (NSYS_TRACE.replace("2000,300", "2000,long"), "line 3: cannot read number 'long'"),
        (NSYS_TRACE.splitlines()[0], "without a launch"),
        ("\n".join(NCU.splitlines()[:4]), "0 launches of ncu"),
        (NCU.replace("gpu__time_duration.sum", "other.sum"), "without gpu__time_duration.sum"),
        (NCU + '"2","1"\n', "cannot read 2 values"),
        (NCU.replace("==PROF== Disconnected", "==ERROR== ERR_NVGPUCTRPERM"), "not allowed to read"),
        (NCU_DETAILS.replace('"us"', '"mile"'), "line 3: cannot read unit of time 'mile'"),
        (NCU_DETAILS.replace("Duration", "Cycles"), "without gpu__time_duration.sum"),
        (TORCH + TORCH, "2 tables of torch.profiler"),
        (TORCH.replace("1.000ms", "1.0fast"), "line 5: cannot read unit of time"),
        (CUTLASS.replace("0.25,31", "fast,31"), "line 2: cannot read number 'fast'"),
        ("\n".join(CUTLASS.splitlines()[::2]), "no kernel that ran"),
        (CUTLASS + NSYS, "tables of several kinds .CUTLASS CSV, nsys summary."),
        (
            "just some text\nof nobody\n",
            "unknown kind of profile .it begins with 'just some text'.",
        ),
        ("", "is empty"),
        ("\n  \n", "is empty"),
    ],
)
def test_one_clear_error(tmp_path, text, message):
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_files_that_are_not_there(tmp_path):
    with pytest.raises(DataError, match="no such file"):
        read_profile(tmp_path / "none")
    with pytest.raises(DataError, match="is a folder"):
        read_profile(tmp_path)
    binary = tmp_path / "report.nsys-rep"
    binary.write_bytes(b"\x7fELF\x00\x01\x02" * 50)
    with pytest.raises(DataError, match=r"binary file of an unknown kind.*nsys export"):
        read_profile(binary)
