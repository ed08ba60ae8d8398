"""Language models with sparse attention: their files, their kernels and what they keep."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from cdmpp.analytic.gpu_kernels.calls import GpuCall
from cdmpp.analytic.gpu_kernels.serving_calls import SparseBlock
from cdmpp.comparison.llm.config_file import decoder_of_config, known_models
from cdmpp.comparison.llm.decoder import Decoder, Format, Parallel
from cdmpp.comparison.llm.kernels import WHOLE_BLOCK, ServingStep, SparseKernels, step_kernels
from cdmpp.comparison.llm.measured_calls import measured_call
from cdmpp.comparison.llm.memory import cache_bytes, least_step_s
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.comparison.llm.times import step_times
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError
from tests.comparison.llama import Answer, Millisecond

_V32 = {"index_topk": 2048, "index_n_heads": 64, "index_head_dim": 128}
_GLM = _V32 | {
    "index_n_heads": 32, "hidden_size": 6144, "num_hidden_layers": 78, "num_attention_heads": 64,
    "intermediate_size": 12288, "vocab_size": 154880, "q_lora_rank": 2048,
    "qk_nope_head_dim": 192, "v_head_dim": 256,
}  # fmt: skip
_M3 = {
    "hidden_size": 6144, "num_hidden_layers": 60, "num_attention_heads": 64, "head_dim": 128,
    "num_key_value_heads": 4, "intermediate_size": 3072, "dense_intermediate_size": 12288,
    "n_shared_experts": 1, "num_local_experts": 128, "num_experts_per_tok": 4,
    "vocab_size": 200064, "moe_layer_freq": [0] * 3 + [1] * 57,
    "sparse_attention_config": {
        "use_sparse_attention": True, "sparse_attention_freq": [0] * 3 + [1] * 57,
        "sparse_num_index_heads": 4, "sparse_index_dim": 128, "sparse_block_size": 128,
        "sparse_topk_blocks": 16,
    },
}  # fmt: skip


_V4 = {
    "compress_ratios": [0, 0, *[4, 128] * 20, 4, 0], "head_dim": 512, "hidden_size": 4096,
    "hc_mult": 4, "index_head_dim": 128, "index_n_heads": 64, "index_topk": 512,
    "expert_dtype": "fp4", "moe_intermediate_size": 2048, "n_routed_experts": 256,
    "n_shared_experts": 1, "num_attention_heads": 64, "num_experts_per_tok": 6,
    "num_hidden_layers": 43, "num_key_value_heads": 1, "o_groups": 8, "o_lora_rank": 1024,
    "q_lora_rank": 1024, "sliding_window": 128, "vocab_size": 129280,
    "quantization_config": {"quant_method": "fp8", "weight_block_size": [128, 128]},
}  # fmt: skip
_NAMED = {
    "compress_ratios": None,
    "layer_types": ["sliding_attention", *["compressed_sparse_attention"] * 42],
    "compress_rates": {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128},
}


def _sparse(architecture: str, keys: dict[str, Any], **changes: Any) -> Decoder:
    """Returns the decoder of a file with sparse attention."""
    is_whole = keys is _V4 or "MiniMax" in architecture
    base = {} if is_whole else known_models()["deepseek-ai/DeepSeek-V3"]
    content = {**base, **keys, "architectures": [architecture], **changes}
    return decoder_of_config(content, "model")


@pytest.mark.parametrize(
    ("architecture", "keys", "billions", "layers"),
    [
        ("DeepseekV32ForCausalLM", _V32, 671, {"sparse attention": 61}),
        ("GlmMoeDsaForCausalLM", _GLM, 744, {"sparse attention": 78}),
        (
            "GlmMoeDsaForCausalLM", _GLM | {"index_topk_freq": 4, "index_skip_topk_offset": 3}, 744,
            {"sparse attention": 21, "sparse attention without an index": 57},
        ),
        (
            "MiniMaxM3SparseForConditionalGeneration", _M3, 428,
            {"attention": 3, "sparse attention": 57},
        ),
        (
            "DeepseekV4ForCausalLM", _V4, 284,
            {"attention, window 128": 2, "compressed sparse attention": 21,
             "heavily compressed attention": 20},
        ),
    ],
)  # fmt: skip
def test_sparse_attention_is_read(
    architecture: str, keys: dict[str, Any], billions: int, layers: dict[str, int]
) -> None:
    """The parameters are those that the models' authors name."""
    model = _sparse(architecture, keys)
    assert model.parameters / 1e9 == pytest.approx(billions, rel=0.005)
    found: dict[str, int] = {}
    for layer in model.layers:
        text = layer.attention.text
        found[text] = found.get(text, 0) + layer.count
    assert found == layers


def test_indexes_may_be_named_by_layer() -> None:
    kinds = ["full"] * 3 + ["shared"] * 75
    model = _sparse("GlmMoeDsaForCausalLM", _GLM, indexer_types=kinds)
    assert sum(one.count for one in model.layers if one.attention.text == "sparse attention") == 3


@pytest.mark.parametrize(
    ("architecture", "changes", "message"),
    [
        ("DeepseekV32ForCausalLM", {"index_topk": 1024}, "selected 1024.* was not measured"),
        ("DeepseekV32ForCausalLM", {"index_topk": None}, "missing index_topk"),
        ("GlmMoeDsaForCausalLM", {"indexer_types": ["full"]}, "indexer_types must have 61 entries"),
        ("DeepseekV3ForCausalLM", {}, r"sparse attention \(index_topk\), which is not supported"),
        (
            "DeepseekV4ForCausalLM",
            {},
            "missing compress_ratios, head_dim, sliding_window, o_lora_rank, o_groups, hc_mult",
        ),
    ],
)
def test_sparse_attention_of_other_sizes_is_refused(
    architecture: str, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(CdmppError, match=message):
        _sparse(architecture, _V32, **changes)


def test_a_block_of_sparse_attention_has_its_products() -> None:
    model = _sparse("DeepseekV32ForCausalLM", _V32)
    step = ServingStep(prompts=1, chunk=512, past=1024, sequences=8, context=4096)
    launches, moves = step_kernels(model, step, Parallel(8))
    own = [one for one in launches if one.kind == "attention" and one.count == 58]
    facts = "deepseek-v3.2", "dsa"
    assert [(one.call.block, one.share) for one in own] == [
        (SparseBlock(*facts, "prefill", 1, 512 + 8, 1024, 16), 1),
        (SparseBlock(*facts, "decode", 8, 1, 4095, 16), 1),
        (SparseBlock(*facts, "decode", 8, 1, 0, 16), -1),
    ]
    assert {one.call.n for one in launches if one.kind == "products"} == {
        256, 512, 4608, 7168, 16160,
    }  # router, shared experts, dense, down, logits  # fmt: skip
    assert "rotation and cache" not in {one.what for one in moves}


@pytest.mark.parametrize(
    ("format", "dtype", "is_marked"),
    [("bf16", "bfloat16", False), ("fp8_block", "fp8_block", False), ("fp4", "nvfp4", False),
     ("fp8", "fp8_block", True), ("int4", "bfloat16", True)],
)  # fmt: skip
def test_products_of_sparse_attention_are_of_the_nearest_type(
    format: Format, dtype: str, is_marked: bool
) -> None:
    block = SparseBlock("glm-5", "dsa", "prefill", 1, 512, 0, 8)
    found = measured_call(SparseKernels(block, format), get_device("b200"))
    assert found.call == replace(block, dtype=dtype)
    assert bool(found.reason) is is_marked is (found.spread > 1)
    long = SparseKernels(replace(block, length=2**17 + 1), format)
    assert measured_call(long, get_device("b200")).spread > 1


def test_a_step_reads_what_is_selected_and_memory_holds_all() -> None:
    """Keys of the index of all tokens, latents of 2,048."""
    model, device = _sparse("DeepseekV32ForCausalLM", _V32), get_device("b200")
    assert cache_bytes(model, Parallel(), 65_536) == 2 * 61 * 65_536 * (576 + 128)
    short, long = (
        least_step_s(model, Parallel(8), ServingStep(sequences=512, context=context), device)
        for context in (4096, 65_536)
    )
    read = 2 * 61 * 512 * 128 * (65_536 - 4096)
    assert long - short == pytest.approx(read / device.mem_bandwidth_bytes_per_s)


class PerToken(Millisecond):
    """Blocks take a millisecond and ten microseconds for every new token."""

    def times(
        self, calls: Sequence[GpuCall], device: DeviceSpec, *, software: str | None = None
    ) -> Answer:
        """Returns the times of calls."""
        ones = np.array([
            1e-3 + 1e-5 * one.batch * one.length if isinstance(one, SparseBlock) else 1e-3
            for one in calls
        ])  # fmt: skip
        return Answer(ones, 0.9 * ones, 1.2 * ones)


def test_a_step_reads_the_weights_of_sparse_attention_once() -> None:
    """However many prompts, tokens before them and sequences it has."""
    model, device, parallel = (
        _sparse("DeepseekV32ForCausalLM", _V32), get_device("b200"), Parallel(8),
    )  # fmt: skip
    table = StepTable.of(model, parallel, device, PerToken(), "sglang")
    tokens_s = 61 * 1e-5 * 4096
    first = table.seconds(4096, 0, 0, 0, prompt=4096)
    assert first == pytest.approx(table.seconds(32, 0, 0, 0, prompt=32) + tokens_s, rel=0.01)
    assert table.seconds(4096, 0, 0, 0, prompt=512) == pytest.approx(first, rel=0.01)
    assert table.seconds(4096, 4096, 0, 0, prompt=8192) == pytest.approx(first, rel=0.01)
    mixed = table.seconds(4032, 0, 64, 4096, prompt=4032)
    assert mixed == pytest.approx(first, rel=0.01)
    step = ServingStep(prompts=1, chunk=4032, sequences=64, context=4096)
    (whole,) = step_times(model, parallel, [step], device, PerToken(), "sglang")
    assert whole.ends[0] == pytest.approx(mixed, rel=0.01)


def test_layers_of_deepseek_v4_may_be_named() -> None:
    model = _sparse("DeepseekV4ForCausalLM", _V4, **_NAMED)
    assert [layer.attention.text for layer in model.layers] == [
        "attention, window 128", "compressed sparse attention",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"compress_ratios": [2] * 43}, "compress_ratios has 2, expected 0 or 4 or 128"),
        ({"compress_ratios": [{}] * 43}, "compress_ratios has {}, expected 0 or 4 or 128"),
        ({"compress_ratios": [4]}, "compress_ratios must have 43 entries"),
        ({"hc_mult": None, "compress_ratios": None}, "missing compress_ratios, hc_mult"),
        ({**_NAMED, "compress_rates": {"a": 1}}, "compress_rates is {'a': 1}, expected"),
        ({"index_topk": 2048}, "selected 2048.* was not measured; expected the sizes of deepseek"),
        ({"expert_dtype": "fp6"}, "expert_dtype is 'fp6', expected fp4, fp8 or bf16"),
    ],
)
def test_other_layers_of_deepseek_v4_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CdmppError, match=message):
        _sparse("DeepseekV4ForCausalLM", _V4, **changes)


def test_deepseek_v4_keeps_few_entries_and_mixes_its_streams() -> None:
    """A token in the window, an entry and a key for each 4 tokens, an entry for each 128."""
    model, device = _sparse("DeepseekV4ForCausalLM", _V4), get_device("b200")
    assert model.kv_dtype == "fp8"
    assert (model.formats.attention, model.formats.experts) == ("fp8_block", "mxfp4")
    kept = 43 * 128 * 512 + 21 * 2048 * (512 + 128) + 20 * 64 * 512
    assert cache_bytes(model, Parallel(), 8192) == kept
    launches, _ = step_kernels(model, ServingStep(sequences=8, context=8192), Parallel(4))
    mixed = [one for one in launches if one.what == "hyper-connections"]
    assert {(one.call.step, one.call.tokens, one.call.hidden) for one in mixed} == {
        ("pre", 8, 4096), ("post", 8, 4096),
    }  # fmt: skip
    assert sum(one.count for one in mixed) == 2 * 43
    blocks = [measured_call(one.call, device) for one in launches if one.what == WHOLE_BLOCK]
    assert [(one.call.kind, one.call.past, bool(one.reason)) for one in blocks] == [
        ("hca", 128, True), ("csa", 8191, False), ("hca", 8191, False),
    ]  # fmt: skip
    assert {(one.call.dtype, one.call.kv_dtype) for one in blocks} == {("fp8_block", "fp8")}
