"""Kernels of LLM serving: their work by hand, their data's faults, versions, and the evaluation."""

from __future__ import annotations

import json
from dataclasses import fields, replace

import numpy as np
import pytest

from cdmpp.analytic.gpu_kernels.account.moe import expert_loads
from cdmpp.analytic.gpu_kernels.calls import KERNELS, SERVING, family_of, make_call
from cdmpp.analytic.gpu_kernels.evaluate import evaluate_packaged
from cdmpp.analytic.gpu_kernels.families import columns_of, work_on
from cdmpp.analytic.gpu_kernels.frameworks import release_of
from cdmpp.analytic.gpu_kernels.measured import read_measured
from cdmpp.analytic.gpu_kernels.model import GpuKernels
from cdmpp.analytic.gpu_kernels.references import version_before_s
from cdmpp.analytic.gpu_kernels.serving_calls import (
    HyperConnections,
    LatentDecode,
    LatentPrefill,
    LinearAttention,
    MoeExchange,
    MoeLayer,
    OneShotReduce,
    QuantizeMatrix,
    SparseBlock,
)
from cdmpp.analytic.gpu_kernels.table import read_kernels
from cdmpp.cli.main import main
from cdmpp.devices.registry import get_device
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import write_columns
from tests.paths import shared

H100, B200, L40S = map(get_device, ("h100", "b200", "l40s"))
DEEPSEEK = MoeLayer(128, 7168, 2048, 8, 256, expert_parallel=8, dtype="fp8_block")
CALLS = (
    DEEPSEEK,
    LatentPrefill(4, 2048, 16),
    LatentDecode(64, 4096, 16),
    LinearAttention("gdn", "scan", "prefill", 4, 2048, 16, 32),
    SparseBlock("glm-5", "dsa", "decode", 64, 1, 8191, 8, dtype="fp8_block"),
    MoeExchange("dispatch", 128, 7168, 8, 256),
    OneShotReduce(2**20, 8),
    QuantizeMatrix(128, 7168),
    HyperConnections("pre", 128, 4096),
)


def _work(call, device=H100, release=500.0):
    columns = columns_of([call])
    return work_on(family_of(call), {**columns, "release": np.array([release])}, device)


def test_an_expert_layer_reads_the_weights_of_its_rank():
    """128 x 8 pairs of token and expert on 256 experts: every one of the rank's 32 has four."""
    work = _work(DEEPSEEK)
    weight = 7168 * 2048 * 3
    moved = 32 * weight
    expected = (moved - H100.l2_bytes) / H100.mem_bandwidth_bytes_per_s
    assert work.limits["memory"][0] == pytest.approx(expected)
    assert work.limits["compute"][0] == pytest.approx(2 * 128 * weight / 1978.9e12)
    assert np.exp(work.inputs["rows"][0]) == pytest.approx(4.0)
    two = _work(replace(DEEPSEEK, gated=0))
    assert two.limits["compute"][0] == pytest.approx(2 / 3 * work.limits["compute"][0])
    halved = _work(replace(DEEPSEEK, tensor_parallel=2))
    assert halved.limits["compute"][0] == pytest.approx(work.limits["compute"][0] / 2)


def test_a_power_law_loads_one_rank_and_leaves_experts_idle():
    even, skewed = DEEPSEEK, replace(DEEPSEEK, distribution="power_law_1.2")
    (rank, law), (expert, top), (used, less) = expert_loads(columns_of([even, skewed]))
    assert rank == pytest.approx(1 / 8)
    assert expert == pytest.approx(1 / 256)
    assert used == 1.0
    assert rank < law <= 1.0
    assert expert < top <= 1 / 8  # no expert has a token twice
    assert less < used


def test_latent_decode_reads_one_latent_for_all_heads():
    few, many = _work(LatentDecode(64, 8192, 16)), _work(LatentDecode(64, 8192, 64))
    cache = 64 * 8192 * 576 * 2
    ends = 64 * 16 * (576 + 512) * 2
    expected = (cache + ends - H100.l2_bytes) / H100.mem_bandwidth_bytes_per_s
    assert few.limits["memory"][0] == pytest.approx(expected)
    assert many.limits["compute"][0] == pytest.approx(4 * few.limits["compute"][0])
    assert many.limits["memory"][0] < 1.1 * few.limits["memory"][0]


def test_a_repeated_call_finds_in_the_l2_what_fits_into_it():
    """8 tokens of 512 + 64 elements in 16 bits are 9 kB: 4,096 of them fit into 100 MB, 16,384 do
    not.
    """
    some, more = (_work(LatentDecode(8, context, 16), L40S) for context in (4096, 16384))
    moved = 8 * 16384 * 576 * 2 + 8 * 16 * (576 + 512) * 2
    assert some.terms["memory"][0] == 0.0
    assert more.terms["memory"][0] == pytest.approx(moved / L40S.mem_bandwidth_bytes_per_s)


def test_heads_fill_the_matrix_units_of_one_warp_or_of_four():
    few, many = (LatentDecode(64, 8192, heads) for heads in (16, 64))
    on_l40s, on_h100 = (
        _work(many, device).terms["units"][0] / _work(few, device).terms["units"][0]
        for device in (L40S, H100)
    )
    assert on_l40s == pytest.approx(4.0)
    assert on_h100 == pytest.approx(1.0)


def test_hyper_connections_read_and_write_every_copy():
    """Both parts of a layer: four copies in and one out, or five in and four out."""
    before, after = (_work(HyperConnections(step, 8192, 4096)) for step in ("pre", "post"))
    token = 2 * 8192 * 4096 * 2
    for work, copies in ((before, 5), (after, 9)):
        expected = (copies * token - H100.l2_bytes) / H100.mem_bandwidth_bytes_per_s
        assert work.limits["memory"][0] == pytest.approx(expected)
    flops = 2 * 2 * 8192 * 4096 * 4 * 24
    assert before.terms["mixture"][0] == pytest.approx(flops / H100.peak_fp32_flop_per_s)


@pytest.mark.parametrize(
    ("earlier", "later"),
    [("0.5.9", "0.5.10"), ("0.5.6", "0.5.6.post2"), ("1.3.0rc10", "1.3.0rc20"),
     ("1.2.0rc5", "1.3.0rc5"), ("1.3.0rc23", "1.3.0"), ("0.24.0", "0.1.dev19262")],
)  # fmt: skip
def test_versions_are_ordered(earlier, later):
    assert release_of(earlier) < release_of(later)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: replace(DEEPSEEK, expert_parallel=3), "256 experts do not divide"),
        (lambda: replace(DEEPSEEK, tensor_parallel=3), "2048 inter do not divide"),
        (lambda: replace(DEEPSEEK, top_k=300), "top_k is 300"),
        (lambda: replace(DEEPSEEK, dtype="int3"), "dtype is 'int3'"),
        (lambda: replace(DEEPSEEK, gated=5), "gated is 5; expected one of 0, 1"),
        (lambda: LatentDecode(1, 0, 16), "context is 0"),
        (lambda: LatentDecode(1, True, 16), "context is True"),
        (lambda: LinearAttention("gdn", "scan", "decode", 1, 64, 1, 1), "length is 64; expected 1"),
        (lambda: LinearAttention("rwkv", "scan", "decode", 1, 1, 1, 1), "kind is 'rwkv'"),
        (lambda: OneShotReduce(8, 1), "at least 2"),
        (lambda: HyperConnections("mid", 1, 4096), "step is 'mid'"),
        (lambda: make_call("moe", {"tokens": "4"}), "hidden, inter, top_k, experts missing"),
        (lambda: release_of("newest"), "version 'newest' cannot be read"),
    ],
)
def test_wrong_calls_are_refused_in_a_sentence(make, message):
    with pytest.raises(UsageError, match=message):
        make()


def test_the_packaged_model_answers_every_family_within_its_interval():
    model = GpuKernels.packaged()
    assert {family_of(call) for call in CALLS} == set(SERVING) <= set(model.families)
    times = model.times(CALLS, H100)
    assert np.all(times.floor_s <= times.low_s)
    assert np.all((times.low_s <= times.latency_s) & (times.latency_s <= times.high_s))
    assert np.all(times.latency_s < 1.0)
    assert times.is_seen_version


def test_a_model_without_a_family_says_so():
    model = GpuKernels.packaged()
    families = {name: one for name, one in model.families.items() if name != "hyper"}
    with pytest.raises(DataError, match="has no kernels 'hyper'; refit it"):
        replace(model, families=families).times(CALLS, H100)


def test_a_block_of_linear_attention_is_its_steps():
    steps = CALLS[3].steps()
    assert [call.step for call in steps] == ["conv", "scan"]
    each = GpuKernels.packaged().times(steps, H100).latency_s
    assert np.all(each > 0)


def test_a_version_that_was_not_measured_has_a_wider_interval():
    model = GpuKernels.packaged()
    known = model.times([DEEPSEEK], B200, software="vllm", version="0.24.0")
    new = model.times([DEEPSEEK], B200, software="vllm", version="0.99.0")
    assert known.is_seen_version
    assert not new.is_seen_version
    assert new.high_s / new.low_s > known.high_s / known.low_s
    newest = model.times([DEEPSEEK], B200, software="vllm")
    assert newest.latency_s == known.latency_s


@pytest.mark.parametrize(
    ("call", "software", "version"),
    [
        (CALLS[4], "sglang", "0.5.14"),  # 0.5.16 has MiniMax's blocks alone
        (replace(CALLS[4], model="minimax-m3", kind="msa"), "sglang", "0.5.16"),
        (CALLS[3], "vllm", "0.24.0"),  # the development build has Kimi's alone
        (DEEPSEEK, "vllm", "0.24.0"),
        (CALLS[1], "vllm", ""),
    ],
)  # fmt: skip
def test_the_newest_version_that_has_the_kind_answers(call, software, version):
    model = GpuKernels.packaged()
    found = model.times([call], B200, software=software)
    assert found.versions == [f"{software} {version}" if version else ""]
    assert found.is_seen_version == bool(version)
    if version:
        named = model.times([call], B200, software=software, version=version)
        assert named.latency_s == found.latency_s
        assert named.is_seen_version


def test_a_version_without_the_kind_has_a_wider_interval():
    model = GpuKernels.packaged()
    known, new = (
        model.times([CALLS[4]], B200, software="sglang", version=version)
        for version in ("0.5.14", "0.5.16")
    )
    assert not new.is_seen_version
    assert new.high_s / new.low_s > known.high_s / known.low_s


def test_precision_changes_an_expert_layer():
    model = GpuKernels.packaged()
    large = replace(DEEPSEEK, tokens=16384)
    calls = [replace(large, dtype=dtype) for dtype in ("bfloat16", "fp8")]
    wide, narrow = model.times(calls, H100).latency_s
    assert narrow < wide


def test_faults_of_the_data_are_left_out_and_counted(tmp_path):
    """Latent attention that the host launched takes 300 us whatever its size."""
    rows = 240
    rng = np.random.default_rng(0)
    version = np.array(["0.14.0", "0.19.0"])[np.arange(rows) % 2]
    columns = {
        "table": np.full(rows, "generation_mla"), "batch_size": 2 ** rng.integers(0, 3, rows),
        "step": 2 ** rng.integers(0, 10, rows), "isl": np.ones(rows, np.int64),
        "num_heads": np.full(rows, 16), "kv_cache_dtype": np.full(rows, "bfloat16"),
        "kernel_source": np.full(rows, "triton"), "system": np.full(rows, "h100_sxm"),
        "framework": np.full(rows, "vllm"), "version": version,
        "latency_s": np.where(version == "0.14.0", 300e-6, 20e-6),
    }  # fmt: skip
    write_columns(tmp_path / "mla.parquet", columns)
    measured = read_measured(tmp_path, "latent_decode")
    assert measured.left_out == {"h100 vllm 0.14.0 bfloat16: the host was timed": rows // 2}
    assert set(measured.table.version) == {"0.19.0"}


def test_convolutions_that_the_host_launched_are_left_out(tmp_path):
    """Those of one kind and phase; its recurrence in the same version is of use."""
    rows = 240
    is_conv = np.arange(rows) % 2 == 0
    sizes = {"num_k_heads": 16, "num_v_heads": 16, "head_k_dim": 128, "head_v_dim": 128}
    others = dict.fromkeys(("n_groups", "nheads", "d_state", "head_dim"), 0)
    columns = {
        **{name: np.full(rows, one) for name, one in {**sizes, **others}.items()},
        "op_name": np.full(rows, "gdn"), "phase": np.full(rows, "context"),
        "batch_size": np.ones(rows, np.int64), "seq_len": 1 + np.arange(rows) // 4,
        "kernel_source": np.where(is_conv, "causal_conv1d_fn", "chunk_gated_delta_rule"),
        "system": np.full(rows, "b200_sxm"), "framework": np.full(rows, "vllm"),
        "version": np.full(rows, "0.22.0"), "latency_s": np.where(is_conv, 210e-6, 25e-6),
    }  # fmt: skip
    write_columns(tmp_path / "linear_attention.parquet", columns)
    measured = read_measured(tmp_path, "linear")
    why = "b200 vllm 0.22.0 gdn conv prefill: the host was timed"
    assert measured.left_out == {why: rows // 2}
    assert set(measured.table.columns["step"]) == {"scan"}


def _moe_rows(folder, slower):
    """Writes expert layers of two versions; the later one takes `slower` times as long."""
    tokens = np.tile(2 ** np.arange(12), 4)
    rows = len(tokens)
    columns = {
        "num_tokens": tokens, "hidden_size": np.full(rows, 4096), "inter_size": np.full(rows, 1536),
        "topk": np.full(rows, 8), "num_experts": np.full(rows, 128),
        "moe_tp_size": np.ones(rows, np.int64), "moe_ep_size": np.ones(rows, np.int64),
        "moe_dtype": np.full(rows, "bfloat16"), "distribution": np.full(rows, "balanced"),
        "kernel_source": np.full(rows, "vllm_fused_moe"), "framework": np.full(rows, "vllm"),
        "system": np.repeat(["h100_sxm", "b200_sxm"], rows // 2),
        "version": np.tile(np.repeat(["0.19.0", "0.24.0"], 12), 2),
    }  # fmt: skip
    base = 3e-3 + 1e-6 * tokens
    seconds = np.where(columns["version"] == "0.24.0", slower, 1.0) * base
    write_columns(folder / "moe.parquet", {**columns, "latency_s": seconds})
    return folder


def test_the_version_before_is_the_same_call(tmp_path):
    measured = read_measured(_moe_rows(tmp_path, 1.5), "moe")
    before = version_before_s(measured)
    later = measured.table.version == "0.24.0"
    assert np.all(np.isnan(before[~later]))
    assert before[later] == pytest.approx(measured.table.latency_s[later], rel=0.01)
    plain = version_before_s(measured, has_factor=False)
    assert plain[later] == pytest.approx(measured.table.latency_s[later] / 1.5)


def test_the_version_before_corrects_the_trees(tmp_path):
    """The trees of 24 rows are leaves alone, and off by up to a factor of ten."""
    measured = read_measured(_moe_rows(tmp_path, 1.0), "moe")
    later = measured.table.version == "0.24.0"
    found = measured.fit(~later, seed=0)
    trees = found.latency_s(measured.work[later], measured.software[later])
    errors = [
        np.abs(np.log(seconds / measured.table.latency_s[later]))
        for seconds in (trees, measured.predicted_s(found, later))
    ]
    assert errors[0].max() > 2.0
    assert errors[1].max() < 0.4


def test_the_packaged_model_is_judged_on_any_folder(tmp_path, capsys):
    folder = _moe_rows(tmp_path, 1.0)
    judged = evaluate_packaged(folder, GpuKernels.packaged())
    assert {(score.device, score.model) for score in judged.scores if score.group == "all"} == {
        (device, model)
        for device in ("h100", "b200")
        for model in ("cdmpp", "roofline", "constant")
    }
    assert main(["analytic", "kernels", "evaluate", "--data", str(folder), "--packaged"]) == 0
    assert "in the interval" in capsys.readouterr().out


def test_a_version_is_an_option_of_the_command(capsys):
    call = "tokens=128,hidden=7168,inter=2048,top_k=8,experts=256,expert_parallel=8,dtype=fp8_block"
    args = ["analytic", "kernels", "predict", "--kernel", "moe", "--call", call]
    more = ["--device", "b200", "--software", "vllm", "--software-version", "0.99.0", "--json"]
    assert main([*args, *more]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["device_was_measured"]
    assert not row["version_was_measured"]
    assert "moe" in KERNELS


@pytest.mark.parametrize("family", ["linear", "sparse", "latent_decode"])
def test_measured_times_correct_calls_as_they_correct_rows(family):
    """A call of a measured row has the words of the row."""
    measured = read_measured(shared("llm-kernels"), family)
    table = measured.table
    facts = np.stack([table.device, table.software, table.version])
    device, software, version = facts[:, 0]
    rows = np.flatnonzero(np.all(facts == facts[:, :1], axis=0))[:40]
    made = type(next(call for call in CALLS if family_of(call) == family))
    names = [one.name for one in fields(made)]
    assert [*table.columns] == [*names, "release"]
    calls = [made(**{name: table.columns[name][row].item() for name in names}) for row in rows]
    model = GpuKernels.packaged()
    of_calls = model.times(
        calls, get_device(str(device)), software=str(software), version=str(version)
    )
    chosen = np.isin(np.arange(len(table)), rows)
    of_rows = measured.predicted_s(model.families[family], chosen)
    assert of_calls.latency_s == pytest.approx(of_rows, rel=1e-6)


@pytest.mark.parametrize(
    "family",
    [
        name if name == "latent_prefill" else pytest.param(name, marks=pytest.mark.exhaustive)
        for name in SERVING
        if name != "moe"
    ],
)
def test_the_packaged_model_fits_the_rows_of_the_data(family):
    measured = read_measured(shared("llm-kernels"), family)
    total = len(read_kernels(shared("llm-kernels"), family))
    assert len(measured.table) + sum(measured.left_out.values()) == total
    fitted = ~measured.is_evaluated_only
    seconds = measured.predicted_s(GpuKernels.packaged().families[family], fitted)
    assert np.mean(np.abs(seconds / measured.table.latency_s[fitted] - 1.0)) < 0.15
