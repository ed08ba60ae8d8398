"""A transformer by its shape: what it weighs, what it keeps, what it launches."""

from __future__ import annotations

import pytest

from cdmpp.analytic.gpu_kernels.calls import (
    Collective,
    DecodeAttention,
    PrefillAttention,
)
from cdmpp.comparison.llm.decoder import Decoder
from cdmpp.comparison.llm.kernels import Launches, Moves, WeightProduct, step_kernels
from cdmpp.comparison.llm.memory import MemoryNeed
from cdmpp.comparison.llm.memory import memory_need as need_of
from cdmpp.comparison.transformer import Pass, TransformerShape, parse_transformer
from cdmpp.errors import UsageError
from tests.comparison.llama import BLOCK, EIGHT_B, MODEL, SHAPE, eight_b


def pass_kernels(model: Decoder, one: Pass) -> tuple[list[Launches], list[Moves]]:
    return step_kernels(model, one.step, one.parallel)


def memory_need(model: Decoder, one: Pass) -> MemoryNeed:
    return need_of(model, one.parallel, one.step, one.sequences, one.length)


def test_the_parameters_are_those_of_the_published_model() -> None:
    assert SHAPE.head == 128
    assert MODEL.parameters == 8_030_261_248  # Llama 3 8B


def test_memory_by_hand() -> None:
    need = memory_need(MODEL, Pass("decode", 4096, batch=4))
    assert need.weights == 2 * 8_030_261_248
    assert need.cache == 4 * 4096 * 32 * 2 * 8 * 128 * 2  # sequences, tokens, layers, k and v
    widest = 4096 + 3 * 14336  # the residual; gate, up and their product
    assert need.activations == 2 * 4 * widest + 4 * 4 * 128256
    quarter = memory_need(MODEL, Pass("decode", 4096, batch=4, degree=4))
    assert quarter.cache == need.cache / 4
    assert need.weights / 4 < quarter.weights < 1.001 * need.weights / 4  # norms are everywhere


def test_types_of_weights() -> None:
    sizes = {
        dtype: memory_need(
            parse_transformer(eight_b(dtype=dtype)).decoder, Pass("decode", 1)
        ).weights
        for dtype in ("bf16", "fp8", "fp4")
    }
    blocks = 32 * BLOCK
    assert sizes["bf16"] - sizes["fp8"] == blocks
    assert sizes["fp8"] - sizes["fp4"] == blocks * (1 - 0.5625)


@pytest.mark.parametrize("kind", ["prefill", "decode"])
def test_the_products_do_the_transformers_operations(kind: str) -> None:
    one = Pass("prefill" if kind == "prefill" else "decode", 1024, batch=2)
    launches, _ = pass_kernels(MODEL, one)
    flop = sum(
        2 * launch.count * launch.call.m * launch.call.n * launch.call.k
        for launch in launches
        if isinstance(launch.call, WeightProduct)
    )
    blocks = 2 * one.tokens * 32 * BLOCK
    assert flop == blocks + 2 * 2 * 4096 * 128256
    wanted = PrefillAttention if kind == "prefill" else DecodeAttention
    (attention,) = [launch for launch in launches if isinstance(launch.call, wanted)]
    assert attention.count == 32
    assert (attention.call.batch, attention.call.heads, attention.call.kv_heads) == (2, 32, 8)


def test_devices_that_share_it_do_a_part_each_and_add_up() -> None:
    whole, _ = pass_kernels(MODEL, Pass("prefill", 1024))
    part, _ = pass_kernels(MODEL, Pass("prefill", 1024, degree=4))

    def flop(launches: list) -> int:
        return sum(
            one.count * one.call.m * one.call.n * one.call.k
            for one in launches
            if isinstance(one.call, WeightProduct)
        )

    assert 4 * flop(part) == flop(whole)
    sums = [one for one in part if isinstance(one.call, Collective)]
    assert [(one.call.kind, one.count) for one in sums] == [("all_reduce", 64), ("all_gather", 1)]
    assert sums[0].call.message_bytes == 1024 * 4096 * 2
    assert not [one for one in whole if isinstance(one.call, Collective)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("layers=32", "lacks width=N"),
        (f"{EIGHT_B},hats=3", "'hats'.*expected e.g."),
        (f"{EIGHT_B},experts=128", "no key 'experts'.*keys: layers, width.*[Mm]ixtures of experts"),
        ("models/config.json", "is a file; run --model models/config.json"),
        (eight_b(dtype="int8"), "dtype=int8, expected one of bf16.*int8 and fp32 weights"),
        (f"{EIGHT_B},layers=3", "has layers twice"),
        ("layer=32,width=64", "did you mean 'layers'"),
        (eight_b(dtype="int3"), "dtype=int3, expected one of bf16, fp16, fp8, fp4"),
        (eight_b(layers=0), "layers=0, expected at least 1"),
        (eight_b(layers="many"), "expected a whole number"),
        (eight_b(width="1" + "0" * 330), "width or head_size is more than 9223372036854775808"),
        (eight_b(width="1" * 5000), "expected a whole number"),
        (eight_b(kv_heads=5), "expected a multiple of kv_heads=5"),
        (eight_b(kv_dtype="fp2"), "kv_dtype=fp2, expected bf16 or fp8"),
        ("layers=2,width=100,heads=3,ffn=8,vocab=8", "not a whole number"),
    ],
)
def test_shapes_that_are_none_are_one_sentence(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        parse_transformer(text)
    assert "\n" not in str(caught.value)


def test_devices_that_cannot_share_it() -> None:
    with pytest.raises(UsageError, match="3 devices cannot share 32 heads"):
        memory_need(MODEL, Pass("prefill", 8, degree=3))
    with pytest.raises(UsageError, match="batch 0, expected at least 1"):
        Pass("decode", 8, batch=0)
    with pytest.raises(UsageError, match="length is more than 9223372036854775808"):
        Pass("decode", 10**330)


def test_a_model_with_one_kv_head_keeps_it_everywhere() -> None:
    model = TransformerShape(1, 64, 8, 1, 256, 512).decoder
    one, four = (memory_need(model, Pass("decode", 16, degree=degree)) for degree in (1, 4))
    assert one.cache == four.cache
