"""Whole blocks of sparse attention: their work by hand, their data's faults, and the answers."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cdmpp.analytic.gpu_kernels.account.sparse import sparse_weights
from cdmpp.analytic.gpu_kernels.calls import make_call
from cdmpp.analytic.gpu_kernels.families import columns_of, error_groups, work_on
from cdmpp.analytic.gpu_kernels.measured import read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.serving_calls import SPARSE_DTYPES, SparseBlock
from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_columns

H100, B200, L40S = (get_device(label) for label in ("h100", "b200", "l40s"))
DECODE = SparseBlock("deepseek-v3.2", "dsa", "decode", 64, 1, 8191, 16)
PREFILL = SparseBlock("deepseek-v3.2", "dsa", "prefill", 1, 4096, 0, 16)
MSA = SparseBlock("minimax-m3", "msa", "decode", 64, 1, 8191, 64)


def _work(call, device=B200):
    return work_on("sparse", {**columns_of([call]), "release": np.array([500.0])}, device)


def test_weights_are_those_of_the_model():
    """DeepSeek-V3.2: MLA's five matrices and the index's three."""
    latent = 7168 * (1536 + 576) + 1536 * 128 * 192 + 128 * 512 * 256 + 7168 * 128 * 128
    index = 1536 * 64 * 128 + 7168 * (128 + 64)
    assert sparse_weights("dsa", "deepseek-v3.2", 128, 1) == latent + index
    assert sparse_weights("dsa", "deepseek-v3.2", 128, 0) == latent
    halved = sparse_weights("dsa", "deepseek-v3.2", 64, 1)  # a rank keeps latents and the index
    assert halved == (latent + index + 7168 * (1536 + 576) + index) / 2
    out = 128 * 512 * 1024 + 16 * 1024 * 7168
    compressed = 7168 * (1536 + 512) + 1536 * 128 * 512 + out
    assert sparse_weights("hca", "deepseek-v4-pro", 128, 1) == compressed + 7168 * 2 * 512
    grouped = 6144 * 128 * (64 + 64 + 2 * 4)
    assert sparse_weights("msa", "minimax-m3", 64, 1) == grouped + 6144 * 128 * (4 + 1)


@pytest.mark.parametrize("call", [DECODE, MSA])
def test_a_token_attends_to_those_that_are_selected(call):
    """2,048 of however many; only the index sees them all."""
    short, long = (_work(replace(call, past=past)) for past in (2047, 131_071))
    assert long.terms["attention"] == pytest.approx(short.terms["attention"])
    assert long.terms["gather"] == pytest.approx(short.terms["gather"])
    assert long.terms["index"] == pytest.approx(64 * short.terms["index"])
    few = _work(replace(call, past=1023))
    assert few.terms["attention"] == pytest.approx(short.terms["attention"] / 2)


def test_the_attention_of_a_token_by_hand():
    """16 heads, 2,048 entries of 576 elements for the scores and 512 for the result."""
    work = _work(DECODE)
    flop = 2 * 64 * 16 * 2048 * (576 + 512)
    assert work.terms["attention"][0] == pytest.approx(flop / B200.peak_bf16_flop_per_s)
    index = 2 * 64 * 8192 * 64 * 128
    assert work.terms["index"][0] == pytest.approx(index / B200.peak_fp8_flop_per_s)
    reused = _work(replace(DECODE, indexed=0))
    assert reused.terms["index"][0] == 0.0
    assert reused.terms["kernels"][0] < work.terms["kernels"][0]


def test_a_compressed_cache_has_fewer_entries():
    """4 or 128 tokens an entry, and 128 tokens of the window besides."""
    call = SparseBlock("deepseek-v4-pro", "csa", "decode", 8, 1, 65_535, 128)
    pairs = {"csa": 1024 + 128, "hca": 65_536 / 128 + 128}
    for kind, entries in pairs.items():
        work = _work(replace(call, kind=kind))
        flop = 2 * 8 * 128 * entries * 1024
        assert work.terms["attention"][0] == pytest.approx(flop / B200.peak_bf16_flop_per_s)
    assert _work(replace(call, kind="hca")).terms["index"][0] == 0.0
    assert _work(call).terms["index"][0] == pytest.approx(
        2 * 8 * 65_536 / 4 * 64 * 128 / B200.peak_fp8_flop_per_s
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "hca"}, "kind is 'hca'; expected one of dsa"),
        ({"model": "glm-4"}, "model is 'glm-4'"),
        ({"length": 2}, "expected 1 in decode"),
        ({"past": -1}, "past is -1"),
        ({"dtype": "int4"}, "dtype is 'int4'"),
    ],
)
def test_wrong_blocks_are_refused(changes, message):
    with pytest.raises(UsageError, match=message):
        replace(DECODE, **changes)


def _rows(folder, **changes):
    """Writes 40 blocks of msa of one server on an H100."""
    count = 40
    columns = {
        "table": "msa_generation_module", "op_name": "msa_generation_module",
        "kernel_source": "MiniMaxM3SparseTritonImpl", "architecture": "MiniMaxM3ForCausalLM",
        "model": "MiniMaxAI/MiniMax-M3", "kv_cache_dtype": "fp8_e4m3", "gemm_type": "bfloat16",
        "system": "h100_sxm", "framework": "vllm", "version": "0.24.0", "isl": 1,
        "batch_size": 1, "num_heads": 64, "latency_s": 90e-6, "step": np.arange(count),
    } | changes  # fmt: skip
    write_columns(
        folder / "sparse_attention.parquet",
        {name: np.broadcast_to(one, count).copy() for name, one in columns.items()},
    )
    return read_measured(folder, "sparse")


def test_words_of_the_data_are_those_of_calls(tmp_path):
    table = _rows(tmp_path).table
    first = {name: column[0] for name, column in table.columns.items() if name != "release"}
    assert make_call("sparse", {name: str(value) for name, value in first.items()}) == SparseBlock(
        "minimax-m3", "msa", "decode", 1, 1, 0, 64, kv_dtype="fp8"
    )
    assert set(error_groups("sparse", table.columns)) == {"sparse msa decode"}
    skips = {"op_name": "dsa_context_module_skip_indexer", "table": "dsa_context_module",
             "architecture": "GlmMoeDsaForCausalLM"}  # fmt: skip
    other = _rows(tmp_path, **skips).table.columns
    assert (other["kind"][0], other["phase"][0], other["indexed"][0]) == ("dsa", "prefill", 0)
    assert other["model"][0] == "glm-5"
    path = tmp_path / "sparse_attention.parquet"
    texts = pq.read_table(path)
    large = [pa.large_string() if pa.types.is_string(t) else t for t in texts.schema.types]
    pq.write_table(texts.cast(pa.schema(zip(texts.column_names, large, strict=True))), path)
    again = read_measured(tmp_path, "sparse").table
    assert all(np.array_equal(again.columns[name], column) for name, column in other.items())
    with pytest.raises(DataError, match="architecture 'Llama' is unknown; expected one of Deep"):
        _rows(tmp_path, architecture="Llama")


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"framework": "TRTLLM", "kernel_source": "default", "version": "1.3.0rc23"},
         "msa of trtllm on H100 and L40S: a reference path"),
        ({"framework": "sglang", "system": "rtx_pro_6000_server", "version": "0.5.14",
          "table": "dsv4_csa_generation_module", "architecture": "DeepseekV4ForCausalLM"},
         "csa and hca of sglang on RTX PRO 6000: a reference path"),
    ],
)  # fmt: skip
def test_reference_paths_are_left_out_and_counted(tmp_path, changes, why):
    measured = _rows(tmp_path, **changes)
    assert measured.left_out == {why: 40}
    assert not len(measured.table)


def test_blocks_that_hide_the_host_are_kept(tmp_path):
    """Launched eagerly, small ones take 1 ms whatever they do; large ones take their own time."""
    tokens = np.where(np.arange(40) < 30, 1, 65_536)
    changes = {"table": "msa_context_module", "isl": tokens, "step": np.arange(40)}
    measured = _rows(tmp_path, latency_s=np.where(tokens > 1, 60e-3, 1e-3), **changes)
    assert measured.left_out == {
        "h100 vllm 0.24.0 bfloat16 fp8 msa prefill: the host was timed": 30
    }
    assert set(measured.table.columns["length"]) == {65_536}
    graphs = _rows(tmp_path, latency_s=np.where(tokens > 1, 60e-3, 80e-6), **changes)
    assert graphs.left_out == {}


@pytest.mark.parametrize(
    ("data", "families", "message"),
    [
        ("here", "moe", r"no kernels 'moe' in \S+: it has no moe.parquet; expected some of sparse"),
        ("here", "sparze", "no kernels 'sparze', did you mean 'sparse'"),
        ("empty", "sparse", "it has no sparse_attention.parquet$"),
        ("empty", "", r"gemm.parquet: cannot read the measured kernels \(no such file\)"),
        ("missing", "sparse", "missing does not exist; expected a folder of measured kernels"),
        ("missing", "", "missing does not exist; expected a folder of measured kernels"),
        ("here/sparse_attention.parquet", "sparse", "sparse_attention.parquet is not a folder"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("command", ["fit", "evaluate"])
def test_what_a_folder_lacks_is_said(tmp_path, capsys, command, data, families, message):
    for name in ("here", "empty"):
        (tmp_path / name).mkdir()
    _rows(tmp_path / "here")
    words = ["analytic", "kernels", command, "--data", str(tmp_path / data)]
    more = ["--out", str(tmp_path / "model")] if command == "fit" else []
    assert main([*words, *more, "--families", families]) in (2, 3)
    assert re.search(message, capsys.readouterr().err.strip())


def test_the_packaged_model_knows_what_was_measured_where():
    model = GpuKernels.packaged()
    assert model.times([MSA], L40S).is_seen_device
    assert not model.times([DECODE], L40S).is_seen_device  # only MiniMax's blocks were
    assert model.times([DECODE], H100).is_seen_device
    for call in (DECODE, PREFILL, MSA):
        times = [model.times([replace(call, dtype=one)], B200) for one in SPARSE_DTYPES]
        for one in times:
            assert one.floor_s[0] <= one.low_s[0] <= one.latency_s[0] <= one.high_s[0]


def test_a_long_context_costs_less_than_all_its_tokens():
    """16 times the context: an attention to all of it would take about as many times as long."""
    model = GpuKernels.packaged()
    calls = [replace(DECODE, past=past) for past in (8_191, 131_071)]
    short, long = model.times(calls, B200).latency_s
    assert short < long < 8 * short
    both = [replace(DECODE, past=131_071, indexed=one) for one in (1, 0)]
    own, reused = model.times(both, B200).latency_s
    assert reused < own
