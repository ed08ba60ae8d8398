"""Language models from their `config.json`: sizes, formats, kinds of layers, and refusals."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from cdmpp.analytic.gpu_kernels.calls import Collective, Gemm
from cdmpp.analytic.gpu_kernels.serving_calls import (
    LatentDecode,
    LatentPrefill,
    MoeExchange,
    MoeLayer,
    OneShotReduce,
)
from cdmpp.comparison.llm.config_file import known_models, read_model
from cdmpp.comparison.llm.decoder import (
    Experts,
    Format,
    GroupedAttention,
    LatentAttention,
    Parallel,
    SparseAttention,
)
from cdmpp.comparison.llm.kernels import (
    ExpertProducts,
    LatentKernel,
    ServingStep,
    WeightProduct,
    step_kernels,
)
from cdmpp.comparison.llm.measured_calls import AskedCall, measured_call
from cdmpp.comparison.llm.memory import least_step_s, memory_need, weight_bytes
from cdmpp.comparison.llm.step_table import StepTable
from cdmpp.comparison.llm.times import step_times
from cdmpp.comparison.serving import serving_cell
from cdmpp.comparison.transformer import Pass
from cdmpp.devices.registry import get_device
from cdmpp.errors import CdmppError, UsageError
from tests.comparison.llama import MODEL, Millisecond

QWEN = {
    "architectures": ["Qwen3MoeForCausalLM"], "hidden_size": 2048, "num_attention_heads": 32,
    "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128, "num_experts_per_tok": 8,
    "moe_intermediate_size": 768, "num_hidden_layers": 48, "vocab_size": 151936,
}  # fmt: skip

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32768}


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("meta-llama/Llama-3.1-70B", 70.55),
        ("Qwen/Qwen3-32B", 32.76),
        ("Qwen/Qwen3-30B-A3B", 30.53),
        ("Qwen/Qwen3-235B-A22B", 235.09),
        ("mistralai/Mixtral-8x7B-v0.1", 46.70),
        ("deepseek-ai/DeepSeek-V3", 671.0),
        ("openai/gpt-oss-120b", 116.8),
        ("openai/gpt-oss-20b", 20.9),
        ("google/gemma-3-27b-it", 27.0),
        ("zai-org/GLM-4.5-Air", 106.85),
        ("moonshotai/Kimi-K2-Instruct", 1026.4),
        ("MiniMaxAI/MiniMax-M2", 228.7),
    ],
)
def test_parameters_are_those_that_are_published(name: str, billions: float) -> None:
    assert read_model(name).parameters / 1e9 == pytest.approx(billions, rel=2e-3)


def write(folder: Path, **changes: object) -> Path:
    values = {key: value for key, value in {**QWEN, **changes}.items() if value is not None}
    path = folder / "config.json"
    path.write_text(json.dumps(values))
    return path


def test_a_dense_file_is_the_same_as_its_shape() -> None:
    read = read_model("meta-llama/Llama-3.1-8B", name="8b")
    assert read == MODEL


def test_kinds_of_layers() -> None:
    deepseek = read_model("deepseek-ai/DeepSeek-V3")
    assert [layer.count for layer in deepseek.layers] == [3, 58]
    assert deepseek.layers[1].attention == LatentAttention(128, 1536, 512, 128, 64, 128)
    assert deepseek.layers[1].feed_forward == Experts(256, 8, 2048, 2048)
    gemma = read_model("google/gemma-3-27b-it")
    assert [(layer.count, layer.attention.window) for layer in gemma.layers] == [
        (52, 1024),
        (10, 0),
    ]
    oss = read_model("openai/gpt-oss-120b")
    assert [(layer.count, layer.attention.window) for layer in oss.layers] == [(18, 128), (18, 0)]


def test_devices_beyond_the_kv_heads_have_one_each() -> None:
    attention = GroupedAttention(32, 4, 128)
    assert attention.weights_on(2048, 4) == attention.weights(2048) / 4
    assert attention.weights_on(2048, 8) == 2048 * 128 * 2 * (32 / 8 + 1)


def test_what_a_window_and_a_latent_keep() -> None:
    one = Parallel()
    oss = read_model("openai/gpt-oss-20b")
    step = ServingStep(sequences=1, context=4096)
    kept = memory_need(oss, one, step, 1, 4096).cache
    assert kept == 2 * 2 * 8 * 64 * (12 * 128 + 12 * 4096)
    deepseek = read_model("deepseek-ai/DeepSeek-V3")
    for tensor in (1, 8):  # every device has the latents
        assert memory_need(deepseek, Parallel(tensor), step, 1, 4096).cache == 61 * 4096 * 576 * 2


@pytest.mark.parametrize(
    ("config", "formats", "kv_dtype"),
    [
        (None, ("bf16", "bf16", "bf16"), "bf16"),
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, ("fp8_block",) * 3, "bf16"),
        ({"quant_method": "fp8"}, ("fp8",) * 3, "bf16"),
        ({"quant_method": "mxfp4"}, ("bf16", "bf16", "mxfp4"), "bf16"),
        (
            {"quant_method": "modelopt", "quant_algo": "NVFP4", "kv_cache_quant_algo": "FP8",
             "ignore": ["model.layers.*.self_attn*", "lm_head"]},
            ("bf16", "fp4", "fp4"), "fp8",
        ),
        ({"quant_method": "awq", "bits": 4}, ("int4",) * 3, "bf16"),
        (
            {"quant_method": "compressed-tensors", "ignore": ["re:.*self_attn.*"],
             "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}},
            ("bf16", "int4", "int4"), "bf16",
        ),
        (  # one layer of 48 that keeps 16 bits does not count
            {"quant_method": "fp8", "modules_to_not_convert": ["model.layers.0.self_attn"]},
            ("fp8",) * 3, "bf16",
        ),
    ],
)  # fmt: skip
def test_quantisation_is_read(
    tmp_path: Path, config: dict | None, formats: tuple[str, ...], kv_dtype: str
) -> None:
    found = read_model(write(tmp_path, quantization_config=config))
    one = found.formats
    assert (one.attention, one.dense, one.experts) == formats
    assert found.kv_dtype == kv_dtype
    assert read_model(tmp_path, precision="fp8").main_format == "fp8"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": None}, "no key architectures"),
        ({"architectures": ["BertModel"]}, "architecture 'BertModel' is not supported.*LlamaForC"),
        (
            {"architectures": ["Qwen3NextForCausalLM"], "linear_num_key_heads": 16},
            r"not supported \(it has linear attention\)",
        ),
        ({"hidden_size": None, "vocab_size": None}, "missing hidden_size, vocab_size"),
        (
            {"num_hidden_layers": None, "num_attention_heads": None, "num_experts": None},
            "missing num_hidden_layers, num_attention_heads, num_experts$",
        ),
        ({"hidden_size": "big"}, "hidden_size is 'big', expected a whole number from 1 up"),
        ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000, expected at most 1000"),
        ({"hidden_size": 10**400}, "hidden_size is 10000.*, expected at most 9223372036854775808$"),
        (
            {"text_config": ["a list"]},
            r"text_config is \['a list'\], expected the keys of a dec",
        ),
        (
            {"torch_dtype": "float4_weird"},
            "torch_dtype is 'float4_weird', expected one of bfloat16, float16, float32, auto$",
        ),
        ({"dtype": [16]}, r"dtype is \[16\], expected one of bfloat16, "),
        ({"num_experts_per_tok": 200}, "200 is more than num_experts 128"),
        (
            {"head_dim": None, "num_attention_heads": 33},
            "hidden_size 2048 is not a multiple of num_attention_heads 33, and head_dim is not",
        ),
        ({"num_key_value_heads": 5}, "not a multiple of num_key_value_heads 5"),
        ({"index_topk": 2048}, r"sparse attention \(index_topk\), which is not supported"),
        ({"sliding_window": 8, "layer_types": ["x"] * 48}, "layers of type 'x' are not supported"),
        (
            {"quantization_config": {"quant_method": "bitsandbytes"}},
            "bitsandbytes is not supported",
        ),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "gptq 8 is not supported"),
        ({"mlp_only_layers": 3}, "mlp_only_layers is 3, expected a list"),
        ({"attn_type_list": 3}, "attn_type_list is 3, expected a list"),
        ({"quantization_config": {"quant_method": "fp8", "ignore": 5}}, "ignore is 5, expected a"),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": []}},
            "None weights of None bits",
        ),
        (
            {"quantization_config": {"quant_method": "compressed-tensors", "config_groups": [1]}},
            r"config_groups has \[1\], expected keys",
        ),
        *(
            ({"quantization_config": {"quant_method": "fp8", "ignore": [f"re:{pattern}"]}}, message)
            for pattern, message in (
                ("(.+)+X", "without repeated groups"),
                ("*bad", "is not supported"),
                (".*" * 9 + "X", "too many"),
                ("(.|..)" * 32 + "X", "too many"),
                ("a{99999999999}", "is not supported"),
            )
        ),
    ],
)
def test_files_that_are_not_covered_are_one_sentence(
    tmp_path: Path, changes: dict, message: str
) -> None:
    with pytest.raises(CdmppError, match=message) as caught:
        read_model(write(tmp_path, **changes))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("parallel", "message"),
    [
        ((3,), "3 devices cannot share 32 heads"),
        ((1, 1, 3), "--expert-parallel 3 does not divide the 1 device of"),
        ((1, 1, 1, 99), "at most its 48 layers"),
        ((1, 256, 256), "--expert-parallel 256 does not divide its 128 experts"),
        ((1, 10, 2), "5 devices cannot share an expert of ffn 768 evenly"),
    ],
)
def test_sizes_that_do_not_divide(parallel: tuple[int, ...], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        weight_bytes(read_model("Qwen/Qwen3-30B-A3B"), Parallel(*parallel))


def test_a_vocabulary_is_padded_until_devices_divide_it() -> None:
    model, padded = (replace(MODEL, vocab=vocab) for vocab in (50257, 50260))
    shared, step = Parallel(tensor=4), ServingStep(sequences=3, context=9)
    assert weight_bytes(model, shared) == weight_bytes(padded, shared)
    assert memory_need(model, shared, step, 3, 9) == memory_need(padded, shared, step, 3, 9)
    assert step_kernels(model, step, shared) == step_kernels(padded, step, shared)
    assert weight_bytes(model, Parallel()) < weight_bytes(padded, Parallel())


def test_a_dense_model_has_no_groups_of_experts() -> None:
    with pytest.raises(UsageError, match="has no experts"):
        weight_bytes(MODEL, Parallel(tensor=8, expert=8))


def test_experts_are_shared_whole_or_in_parts() -> None:
    model = read_model("Qwen/Qwen3-30B-A3B")
    eighth, groups = Parallel(tensor=8), Parallel(tensor=8, expert=8)
    assert weight_bytes(model, eighth) == weight_bytes(model, groups)
    replicas = Parallel(tensor=1, data=8, expert=8)  # attention is on every device
    attention = model.layers[0].attention  # 8 devices have 4 heads of keys and values
    more_elements = 48 * (attention.weights(model.width) - attention.weights_on(model.width, 8))
    wide = 2 * 2 * model.vocab * model.width
    more = weight_bytes(model, replicas) - weight_bytes(model, groups)
    assert more == pytest.approx(2 * more_elements + wide * 7 / 8)


def test_replicas_send_their_tokens_to_the_experts() -> None:
    model = read_model("Qwen/Qwen3-30B-A3B")
    launches, _ = step_kernels(model, ServingStep(sequences=4, context=99), Parallel(1, 8, 8))
    sent = [one for one in launches if one.kind == "collectives"]
    assert [(one.call.kind, one.count) for one in sent] == [("alltoall", 48)] * 2
    (experts,) = [one.call for one in launches if one.kind == "experts"]
    assert (experts.tokens, experts.tensor, experts.expert) == (32, 1, 8)


def test_tokens_go_between_machines_by_deepep() -> None:
    model = read_model("Qwen/Qwen3-30B-A3B")
    for sequences, mode in ((4, "low_latency"), (129, "normal")):
        step = ServingStep(sequences=sequences, context=99)
        launches, _ = step_kernels(model, step, Parallel(1, 16, 16))
        sent = [one.call for one in launches if one.kind == "collectives"]
        assert sent == [
            MoeExchange(way, sequences, 2048, 8, 128, 2, mode) for way in ("dispatch", "combine")
        ]


def test_a_chunk_takes_its_part_of_the_prompt() -> None:
    whole, _ = step_kernels(MODEL, ServingStep(prompts=1, chunk=4096), Parallel())
    parts = [
        step_kernels(MODEL, ServingStep(prompts=1, chunk=1024, past=past), Parallel())[0]
        for past in (0, 1024, 2048, 3072)
    ]
    shares = [next(one for one in part if one.kind == "attention").share for part in parts]
    assert shares == [1.0, 3 / 4, 5 / 9, 7 / 16]
    assert next(one for one in whole if one.kind == "attention").share == 1.0


@pytest.mark.parametrize(
    ("format", "device", "dtype"),
    [
        ("bf16", "h100", "bfloat16"), ("fp8_block", "h100", "fp8_block"), ("fp4", "b200", "nvfp4"),
        ("mxfp4", "h100", "w4a16_mxfp4"), ("mxfp4", "b200", "w4a8_mxfp4_mxfp8"),
        ("int4", "a100-sxm", "int4_wo"),
    ],
)  # fmt: skip
def test_experts_are_the_layer_that_was_measured(format: Format, device: str, dtype: str) -> None:
    call = ExpertProducts(64, 2880, 2880, 128, 4, 2, 4, format)
    found = measured_call(call, get_device(device))
    assert found == AskedCall(
        MoeLayer(64, 2880, 2880, 4, 128, 2, 4, dtype, "power_law_1.01")
    )  # fmt: skip


def test_latent_attention_of_other_sizes_is_marked_and_wide() -> None:
    device = get_device("b200")
    known = LatentAttention(128, 1536, 512, 128, 64, 128)
    decode = measured_call(LatentKernel("decode", 4, 4096, known, 16, "bfloat16", "fp8"), device)
    assert decode == AskedCall(LatentDecode(4, 4096, 16, "fp8"))
    small = LatentAttention(40, 768, 256, 64, 32, 64)
    call = LatentKernel("prefill", 2, 1000, small, 40, "bfloat16", "bfloat16")
    found = measured_call(call, device)
    assert found.call == LatentPrefill(2, 1000, 20)  # half as many elements a head
    assert "other sizes" in found.reason
    assert found.spread > 1


def test_more_tokens_than_were_measured_are_marked() -> None:
    device = get_device("h100")
    few, many = (
        measured_call(ExpertProducts(tokens, 2048, 768, 128, 8, 1, 1, "bf16"), device)
        for tokens in (65_536, 65_537)
    )
    assert (few.reason, few.spread) == ("", 1.0)
    assert many.reason == "expert layers of more than 65,536 tokens at once were not measured"
    assert many.spread > 1
    model = read_model("deepseek-ai/DeepSeek-V3", precision="fp8")
    table = StepTable.of(model, Parallel(8), device, Millisecond(), "sglang")
    assert table.reasons(cached=64 * 9000, prompt=8192) == ()
    assert "latent attention of more than 16,777,216 tokens" in table.reasons(1e8, 8192)[0]


@pytest.mark.parametrize(
    ("device", "mebibytes", "gpus", "kind"),
    [
        ("h100", 8, 8, OneShotReduce), ("h100", 9, 8, Collective), ("h100", 1, 16, Collective),
        ("l40s", 1, 2, OneShotReduce), ("l40s", 1, 4, Collective),  # no links but PCIe
    ],
)  # fmt: skip
def test_small_sums_take_one_shot(device: str, mebibytes: int, gpus: int, kind: type) -> None:
    call = Collective("all_reduce", mebibytes * 2**20, gpus)
    found = measured_call(call, get_device(device)).call
    assert type(found) is kind
    assert (found.message_bytes, found.gpus) == (call.message_bytes, gpus)
    gather = Collective("all_gather", 1024, 2)
    assert measured_call(gather, get_device(device)).call == gather


def test_products_with_narrow_weights_alone_are_marked_and_do_as_much() -> None:
    found = measured_call(WeightProduct(64, 4096, 2048, "int4"), get_device("h100"))
    assert isinstance(found.call, Gemm)
    assert found.call.m * found.call.n == pytest.approx(64 * 4096, rel=0.01)
    assert 2 * found.call.n == pytest.approx(4096 * (0.5 + 2 / 128), rel=0.01)
    assert "no measurements of such products" in found.reason
    assert found.spread > 1


@pytest.mark.parametrize(
    ("device", "software", "asked"),
    [
        ("h100", "sglang", ["vllm", "sglang"]), ("h100", None, [None, None]),
        ("mi300x", "sglang", [None, None]),
    ],
)  # fmt: skip
def test_the_backend_says_whose_kernels(
    device: str, software: str | None, asked: list[str | None]
) -> None:
    model, kernels = read_model("Qwen/Qwen3-30B-A3B"), Millisecond()
    step = ServingStep(sequences=8, context=4096)
    (found,) = step_times(model, Parallel(8), [step], get_device(device), kernels, software)
    assert [name for name, _ in kernels.asked] == asked
    own = {type(call) for call in kernels.asked[1][1]}
    assert own == {MoeLayer, OneShotReduce}
    assert found.ends[0] >= least_step_s(model, Parallel(8), step, get_device(device))
    assert sum(one.seconds for one in found.operators) == pytest.approx(found.ends[0])
    assert any("AMD's tuned" in reason for reason in found.reasons) is (device == "mi300x")


def test_more_devices_than_a_machine_has_are_a_note() -> None:
    """Sums over sixteen H100 were those of one machine, without a word."""
    model, step = read_model("meta-llama/Llama-3.1-8B"), ServingStep(sequences=8, context=1024)
    for tensor, parallel in ((8, Parallel(8)), (16, Parallel(16)), (16, Parallel(8, pipeline=2))):
        (found,) = step_times(model, parallel, [step], get_device("h100"), Millisecond())
        said = any("one machine" in reason for reason in found.reasons)
        assert said is (tensor > 8 and parallel.pipeline == 1)


def test_stages_read_the_last_product_once() -> None:
    """Each stage was taken to read it, so the lower bound grew with them."""
    model, step = read_model("Qwen/Qwen3-30B-A3B"), ServingStep(sequences=1, context=1024)
    whole, parts = (
        least_step_s(model, Parallel(pipeline=stages), step, get_device("t4")) for stages in (1, 8)
    )
    assert 0.9 * whole < parts <= whole


def test_an_empty_text_config_is_none(tmp_path: Path) -> None:
    path = write(tmp_path)
    content = json.loads(path.read_text())
    path.write_text(json.dumps({**content, "text_config": None}))
    assert read_model(path) == read_model(write(tmp_path))


@pytest.mark.parametrize(
    ("keys", "context"),
    [
        ({}, None),
        ({"max_position_embeddings": 40960}, 40960),
        ({"max_position_embeddings": 40960, "rope_scaling": {"type": "linear"}}, 40960),
        ({"max_position_embeddings": 40960, "rope_scaling": YARN}, 131072),
        ({"max_position_embeddings": "many", "rope_scaling": [YARN]}, None),
    ],
)
def test_a_pass_beyond_the_context_is_marked(
    keys: dict[str, object], context: int | None, tmp_path: Path
) -> None:
    """`--decode-at` beyond the context of a model gave a number without a note."""
    (tmp_path / "config.json").write_text(json.dumps(QWEN | keys))
    model = read_model(tmp_path)
    assert model.context == context
    for length in (40960, 200_000):
        cell = serving_cell(model, Pass("decode", length), get_device("h100"), Millisecond())
        is_marked = any("exceed the model's context" in reason for reason in cell.reasons)
        assert is_marked == (context is not None and length > context)
        assert cell.latency_s is not None


def test_every_model_that_comes_along_is_read() -> None:
    for name in known_models():
        model = read_model(name)
        assert model.depth > 10
        assert all(
            isinstance(layer.attention, GroupedAttention | LatentAttention | SparseAttention)
            for layer in model.layers
        )
