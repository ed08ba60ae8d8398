"""Reads Hugging Face's `config.json` of a language model as a decoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from cdmpp.analytic.gpu_kernels.account.sparse import INDEX_HEAD, SPARSE_SIZES
from cdmpp.comparison.llm.decoder import (
    FORMATS,
    Attention,
    CacheFormat,
    Decoder,
    Experts,
    FeedForward,
    Format,
    Formats,
    GatedFeedForward,
    GroupedAttention,
    LatentAttention,
    Layer,
    SparseAttention,
    SparseKind,
)
from cdmpp.comparison.llm.quantization import stored_formats
from cdmpp.errors import DataError, UsageError
from cdmpp.files.atomic import read_json
from cdmpp.files.places import package_folder
from cdmpp.text import nearest

#: Layers to read for the keys that they need, if the number of layers is missing.
_SOME_LAYERS = 100
_MOST_LAYERS = 1000
_MOST_SIZE = 2**63
_SPARSE = "sparse attention"
#: Keys of models with unsupported parts -> description of the part.
_NOT_COVERED = {
    "index_topk": _SPARSE, "sparse_attention_config": _SPARSE,
    "linear_num_key_heads": "linear attention", "linear_attn_config": "linear attention",
    "mamba_d_state": "state-space layers", "num_kv_shared_layers": "layers that share a KV cache",
    "cross_attention_layers": "cross-attention", "layer_types_linear": "linear attention",
}  # fmt: skip
_WINDOWED, _FULL = "sliding_attention", "full_attention"
#: DeepSeek-V4: tokens per entry of a layer's cache -> kind of the layer, and Transformers' names of
#: layers -> kind of the layer.
_RATIOS: Mapping[Any, SparseKind] = {0: "window", 4: "csa", 128: "hca"}
_COMPRESSED_LAYERS: Mapping[Any, SparseKind] = {
    _WINDOWED: "window", "compressed_sparse_attention": "csa",
    "heavily_compressed_attention": "hca",
}  # fmt: skip
_RATES = {"compressed_sparse_attention": 4, "heavily_compressed_attention": 128}
#: Names of the weights' type; None as if the key were missing.
_DTYPES = (None, "bfloat16", "float16", "float32", "auto")
#: Key of the decoder in multimodal models.
_TEXT = "text_config"


class _Values:
    """Keys of a file, with errors for missing and invalid ones.

    Attributes:
        missing: required keys that are missing; `error` names all of them.
    """

    def __init__(self, values: Mapping[str, Any], path: Path, architecture: str) -> None:
        self.values = values
        self.missing: dict[str, None] = {}
        self._path = path
        self._architecture = architecture

    def size(self, *names: str, default: int | None = None, least: int = 1) -> int:
        """Returns the integer under the first present name, otherwise `default`; without a default,
        notes the missing key and returns `least`.
        """
        for name in names:
            value = self.values.get(name)
            if value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise self.error(f"{name} is {value!r}, expected a whole number from {least} up")
            if value > _MOST_SIZE:
                raise self.error(f"{name} is {value!r:.40}, expected at most {_MOST_SIZE}")
            return value
        if default is None:
            self.missing[f"{' (or '.join(names)}{')' * (len(names) - 1)}"] = None
            return least
        return default

    def items(self, name: str) -> list[Any]:
        """Returns the list under a name, empty if there is none."""
        found = self.values.get(name)
        if found is not None and (not isinstance(found, list) or len(found) > _MOST_LAYERS):
            raise self.error(f"{name} is {found!r:.60}, expected a list, at most one per layer")
        return found or []

    def or_else(self, **defaults: Any) -> _Values:
        """Returns the values with defaults for missing keys."""
        return self.changed(**{**defaults, **self.values})

    def changed(self, **values: Any) -> _Values:
        """Returns the values with some keys replaced."""
        found = _Values({**self.values, **values}, self._path, self._architecture)
        found.missing = self.missing
        return found

    def refuse(self, what: str) -> None:
        """Raises the error, unless keys are missing, which are collected first."""
        if not self.missing:
            raise self.error(what)

    def error(self, what: str = "") -> DataError:
        """Returns the error of the file; missing keys take precedence."""
        what = f"missing {', '.join(self.missing)}" if self.missing else what
        return DataError(f"{self._path} ({self._architecture}): {what}")


@dataclass(frozen=True)
class _Architecture:
    """How to read an architecture: attention and feed-forward part of the i-th layer, whether it
    has sparse attention, and whether it has DeepSeek-V4's hyper-connections and 8-bit cache.
    """

    attention: Callable[[_Values, int], Attention]
    feed_forward: Callable[[_Values, int], FeedForward]
    is_sparse: bool = False
    has_streams: bool = False


def _grouped(values: _Values, place: int) -> GroupedAttention:
    heads = values.size("num_attention_heads")
    kv_heads = values.size("num_key_value_heads", default=heads)
    width = values.size("hidden_size")
    head = values.size("head_dim", default=width // heads or 1)
    if values.values.get("head_dim") is None and width % heads:
        values.refuse(
            f"hidden_size {width} is not a multiple of num_attention_heads {heads}, and head_dim "
            "is not given"
        )
    if heads % kv_heads:
        values.refuse(
            f"num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}"
        )
    window = values.size("sliding_window", default=0) if _is_windowed(values, place) else 0
    return GroupedAttention(heads, kv_heads, head, window)


def _is_windowed(values: _Values, place: int) -> bool:
    """Whether a layer has a window: by `layer_types`, `max_window_layers` or the older
    `sliding_window_pattern`; otherwise all layers have one.
    """
    given = values.values
    if not given.get("sliding_window") or given.get("use_sliding_window") is False:
        return False
    kinds = given.get("layer_types")
    if kinds is not None:
        depth = values.size("num_hidden_layers")
        if not isinstance(kinds, list) or len(kinds) != depth:
            raise values.error(f"layer_types must have {depth} entries, one per layer")
        unknown = next((one for one in kinds if one not in (_WINDOWED, _FULL)), None)
        if unknown is not None:
            raise values.error(f"layers of type {unknown!r} are not supported")
        return bool(kinds[min(place, depth - 1)] == _WINDOWED)
    if given.get("max_window_layers") is not None:
        return place >= values.size("max_window_layers", least=0)
    period = values.size("sliding_window_pattern", "_sliding_window_pattern", default=0, least=0)
    return not period or bool((place + 1) % period)


def _every_sixth(values: _Values, place: int) -> GroupedAttention:
    """Gemma-3: every sixth layer has full attention, unless the file says otherwise."""
    return _grouped(values.or_else(sliding_window_pattern=6), place)


def _every_second(values: _Values, place: int) -> GroupedAttention:
    """gpt-oss: windowed and full attention alternate, starting with a window."""
    return _grouped(values.or_else(sliding_window_pattern=2), place)


def _latent(values: _Values, place: int) -> LatentAttention:
    return LatentAttention(
        values.size("num_attention_heads"), values.size("q_lora_rank", default=0),
        values.size("kv_lora_rank"), values.size("qk_nope_head_dim"),
        values.size("qk_rope_head_dim"), values.size("v_head_dim"),
    )  # fmt: skip


def _selecting(values: _Values, place: int) -> SparseAttention:
    """DeepSeek-V3.2 and GLM-5: an index selects tokens of latent attention. In GLM-5.2 most layers
    reuse the selection of an earlier layer.
    """
    kinds = values.values.get("indexer_types")
    if kinds is not None:
        is_indexed = _of_layer(values, "indexer_types", kinds, place) != "shared"
    else:
        offset = values.size("index_skip_topk_offset", default=2, least=0)
        is_indexed = not max(place - offset + 1, 0) % values.size("index_topk_freq", default=1)
    sizes = {
        "width": values.size("hidden_size"), "heads": values.size("num_attention_heads"),
        "head": values.size("qk_nope_head_dim") + values.size("qk_rope_head_dim"),
        "value": values.size("v_head_dim"), "query_rank": values.size("q_lora_rank"),
        "latent": values.size("kv_lora_rank") + values.size("qk_rope_head_dim"),
        "index_heads": values.size("index_n_heads"), "selected": values.size("index_topk"),
    }  # fmt: skip
    known = ("deepseek-v3.2", "glm-5")
    return SparseAttention(
        _measured_sizes(values, known, sizes, values.size("index_head_dim")), "dsa", is_indexed
    )


def _block_selecting(values: _Values, place: int) -> Attention:
    """MiniMax-M3: an index selects blocks of tokens, except in the first layers."""
    found = values.values.get("sparse_attention_config")
    if not isinstance(found, dict) or not found.get("use_sparse_attention", True):
        raise values.error("missing sparse_attention_config with use_sparse_attention")
    of_layers = found.get("sparse_attention_freq")
    if not _of_layer(values, "sparse_attention_freq", of_layers, place):
        return _grouped(values, place)
    inner = values.changed(**found)
    sizes = {
        "width": values.size("hidden_size"), "heads": values.size("num_attention_heads"),
        "head": values.size("head_dim"), "kv_heads": values.size("num_key_value_heads"),
        "index_heads": inner.size("sparse_num_index_heads"),
        "selected": inner.size("sparse_block_size") * inner.size("sparse_topk_blocks"),
    }  # fmt: skip
    size = inner.size("sparse_index_dim")
    return SparseAttention(_measured_sizes(values, ("minimax-m3",), sizes, size), "msa")


def _compressing(values: _Values, place: int) -> SparseAttention:
    """DeepSeek-V4: a layer's cache has an entry per 4 tokens, from which an index selects, or one
    per 128 tokens, or only a window; by `compress_ratios`, or `layer_types` in Transformers' files.
    """
    kinds = values.values.get("layer_types")
    if kinds is not None:
        key, known = "layer_types", _COMPRESSED_LAYERS
    else:
        key, known, kinds = "compress_ratios", _RATIOS, values.values.get("compress_ratios")
    found = _of_layer(values, key, kinds, place)
    kind = next((kind for name, kind in known.items() if name == found), None)
    if kind is None:
        values.refuse(f"{key} has {found!r}, expected {' or '.join(map(str, known))}")
    rates = values.values.get("compress_rates")
    if rates is not None and rates != _RATES:
        values.refuse(f"compress_rates is {rates!r}, expected {_RATES!r}")
    head = values.size("head_dim")
    sizes = {
        "width": values.size("hidden_size"), "heads": values.size("num_attention_heads"),
        "head": head, "value": head, "latent": head, "query_rank": values.size("q_lora_rank"),
        "index_heads": values.size("index_n_heads"), "selected": values.size("index_topk"),
        "window": values.size("sliding_window"), "out_rank": values.size("o_lora_rank"),
        "out_groups": values.size("o_groups"),
    }  # fmt: skip
    models = ("deepseek-v4-pro", "deepseek-v4-flash")
    name = _measured_sizes(values, models, sizes, values.size("index_head_dim"))
    return SparseAttention(name, kind or "window")


def _of_layer(values: _Values, key: str, found: Any, place: int) -> Any:
    """Returns the entry of a list for a layer."""
    depth = values.size("num_hidden_layers")
    if found is None:
        values.missing[key] = None
        return None
    if not isinstance(found, list) or len(found) < depth:
        raise values.error(f"{key} must have {depth} entries, one per layer")
    # `place` may exceed the list while missing keys are collected.
    return found[min(place, len(found) - 1)]


def _measured_sizes(
    values: _Values, known: Sequence[str], sizes: Mapping[str, int], index_head: int
) -> str:
    """Returns the model with these sizes."""
    for name in known:
        own = {key: getattr(SPARSE_SIZES[name], key) for key in sizes}
        if own == dict(sizes) and index_head == INDEX_HEAD:
            return name
    found = ", ".join(f"{key} {size}" for key, size in {**sizes, "index_head": index_head}.items())
    values.refuse(
        f"sparse attention with {found} was not measured; expected the sizes of "
        f"{' or '.join(known)}"
    )
    return known[0]


def _gated(values: _Values, place: int) -> GatedFeedForward:
    return GatedFeedForward(values.size("intermediate_size"))


def _qwen_experts(values: _Values, place: int) -> FeedForward:
    dense = values.items("mlp_only_layers")
    every = values.size("decoder_sparse_step", default=1)
    if place in dense or (place + 1) % every:
        return _gated(values, place)
    return _experts(values, "num_experts", "moe_intermediate_size")


def _mixtral_experts(values: _Values, place: int) -> Experts:
    return _experts(values, "num_local_experts", "intermediate_size")


def _deepseek_experts(values: _Values, place: int) -> FeedForward:
    every = values.size("moe_layer_freq", default=1)
    if place < values.size("first_k_dense_replace", default=0, least=0) or place % every:
        return _gated(values, place)
    shared = values.size("n_shared_experts", default=0, least=0)
    return _experts(values, "n_routed_experts", "moe_intermediate_size", shared=shared)


def _hashed_experts(values: _Values, place: int) -> Experts:
    """DeepSeek-V4: experts in every layer; a table selects those of the first layers."""
    ffn, shared = "moe_intermediate_size", values.size("n_shared_experts", default=0, least=0)
    return _experts(values, "n_routed_experts", ffn, shared=shared)


def _glm_experts(values: _Values, place: int) -> FeedForward:
    """As `_deepseek_experts`, or by `mlp_layer_types`."""
    kinds = values.values.get("mlp_layer_types")
    if kinds is not None:
        is_dense = _of_layer(values, "mlp_layer_types", kinds, place) == "dense"
        dense = place + 1 if is_dense else 0
        return _deepseek_experts(values.changed(first_k_dense_replace=dense), place)
    return _deepseek_experts(values, place)


def _minimax_experts(values: _Values, place: int) -> FeedForward:
    of_layers = values.values.get("moe_layer_freq")
    if not _of_layer(values, "moe_layer_freq", of_layers, place):
        return GatedFeedForward(values.size("dense_intermediate_size"))
    found = _mixtral_experts(values, place)
    shared = values.size("n_shared_experts", default=0, least=0)
    each = values.size("shared_intermediate_size", default=found.ffn)
    return replace(found, shared_ffn=shared * each)


def _experts(values: _Values, count: str, ffn: str, *, shared: int = 0) -> Experts:
    experts = values.size(count)
    active = values.size("num_experts_per_tok", "experts_per_token")
    if active > experts:
        values.refuse(f"num_experts_per_tok {active} is more than {count} {experts}")
    each = values.size(ffn)
    return Experts(experts, active, each, shared * each)


#: Name of an architecture in the file -> how to read it.
ARCHITECTURES: Mapping[str, _Architecture] = {
    "LlamaForCausalLM": _Architecture(_grouped, _gated),
    "MistralForCausalLM": _Architecture(_grouped, _gated),
    "Qwen2ForCausalLM": _Architecture(_grouped, _gated),
    "Qwen3ForCausalLM": _Architecture(_grouped, _gated),
    "Gemma3ForCausalLM": _Architecture(_every_sixth, _gated),
    "Gemma3ForConditionalGeneration": _Architecture(_every_sixth, _gated),
    "Qwen3MoeForCausalLM": _Architecture(_grouped, _qwen_experts),
    "MixtralForCausalLM": _Architecture(_grouped, _mixtral_experts),
    "MiniMaxM2ForCausalLM": _Architecture(_grouped, _mixtral_experts),
    "GptOssForCausalLM": _Architecture(_every_second, _mixtral_experts),
    "Glm4MoeForCausalLM": _Architecture(_grouped, _deepseek_experts),
    "DeepseekV3ForCausalLM": _Architecture(_latent, _deepseek_experts),
    "KimiK2ForCausalLM": _Architecture(_latent, _deepseek_experts),
    "DeepseekV32ForCausalLM": _Architecture(_selecting, _deepseek_experts, is_sparse=True),
    "GlmMoeDsaForCausalLM": _Architecture(_selecting, _glm_experts, is_sparse=True),
    "DeepseekV4ForCausalLM": _Architecture(
        _compressing, _hashed_experts, is_sparse=True, has_streams=True
    ),
    "MiniMaxM3ForCausalLM": _Architecture(_block_selecting, _minimax_experts, is_sparse=True),
    "MiniMaxM3SparseForConditionalGeneration": _Architecture(
        _block_selecting, _minimax_experts, is_sparse=True
    ),
}


def read_model(
    path: Path | str,
    *,
    name: str | None = None,
    precision: str | None = None,
    kv_precision: str | None = None,
) -> Decoder:
    """Reads a model's `config.json`.

    Args:
        path: the file, its folder, or a name of `known_models`.
        name: display name; None = the name of the file, or of its folder.
        precision: format of all weights of its layers; None = from the file.
        kv_precision: format of the cache; None = from the file.

    Raises:
        DataError: unreadable, an unsupported architecture or quantisation, or a missing or
            invalid key.
        UsageError: an unknown precision.
    """
    known = known_models().get(str(path))
    if known is not None:
        return _decoder(known, Path(path), name or str(path).rpartition("/")[2], precision,
                        kv_precision)  # fmt: skip
    path = Path(path)
    path = path / "config.json" if path.is_dir() else path
    if not path.exists():
        raise DataError(
            f"no model's config at {path}{nearest(str(path), known_models())}; expected Hugging "
            "Face's config.json, or the name of a shipped config, e.g. "
            f"{', '.join(list(known_models())[:1])}"
        )
    content = read_json(path, what="model's config", hint="expected Hugging Face's config.json")
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected an object of JSON with architectures")
    folder = path.parent.resolve().name if path.name == "config.json" else path.stem
    return _decoder(content, path, name or folder, precision, kv_precision)


def decoder_of_config(content: Mapping[str, Any], name: str) -> Decoder:
    """Returns the decoder of the content of a `config.json`.

    Raises:
        DataError: see `read_model`.
    """
    return _decoder(dict(content), Path(name), name, None, None)


@lru_cache(maxsize=1)
def known_models() -> Mapping[str, dict[str, Any]]:
    """Returns Hugging Face name -> keys of the config.json, for the shipped models."""
    file = package_folder("cdmpp.comparison.llm") / "known_models.json"
    content = read_json(file, what="list of models", hint="reinstall the package")
    return {name: one["config"] for first, one in content.items() for name in (first, *one["also"])}


def _decoder(
    content: dict[str, Any], path: Path, name: str, precision: str | None, kv_precision: str | None
) -> Decoder:
    inner = content.get(_TEXT) or {}
    if not isinstance(inner, dict):
        raise DataError(f"{path}: {_TEXT} is {inner!r:.60}, expected the keys of a decoder")
    given = {**content, **inner}
    architecture = _architecture(content, given, path)
    values = _Values(given, path, architecture)
    read = ARCHITECTURES[architecture]
    _check_covered(values, read)
    depth, width = values.size("num_hidden_layers"), values.size("hidden_size")
    if depth > _MOST_LAYERS:
        raise values.error(f"num_hidden_layers is {depth}, expected at most {_MOST_LAYERS}")
    vocabulary = values.size("vocab_size")
    kinds: dict[tuple[Attention, FeedForward], int] = {}
    for place in range(_SOME_LAYERS if values.missing else depth):
        kind = read.attention(values, place), read.feed_forward(values, place)
        kinds[kind] = kinds.get(kind, 0) + 1
    streams = values.size("hc_mult") if read.has_streams else 1
    if values.missing:
        raise values.error()
    layers = tuple(Layer(*kind, count) for kind, count in kinds.items())
    wide = _wide(values)
    stored, stored_kv = stored_formats(content, depth, wide, path)
    stored_kv = "fp8" if read.has_streams else stored_kv
    formats = stored if precision is None else Formats(*[_precision(precision)] * 3)
    return Decoder(
        name, width, vocabulary, layers, formats,
        wide=wide, kv_dtype=stored_kv if kv_precision is None else _cache(kv_precision),
        is_tied=bool(given.get("tie_word_embeddings", architecture.startswith("Gemma3"))),
        streams=streams,
        has_drafts=bool(given.get("num_nextn_predict_layers")), context=_context(given),
    )  # fmt: skip


def _wide(values: _Values) -> Literal["bf16", "fp16"]:
    """Returns the 16-bit type of the weights; bf16 for float32."""
    name = next((one for one in ("torch_dtype", "dtype") if one in values.values), "dtype")
    dtype = values.values.get(name)
    if dtype not in _DTYPES:
        known = ", ".join(str(one) for one in _DTYPES if one)
        raise values.error(f"{name} is {dtype!r:.60}, expected one of {known}")
    return "fp16" if dtype == "float16" else "bf16"


def _context(given: Mapping[str, Any]) -> int | None:
    """Returns the maximum number of tokens of a sequence, with scaled rotary positions; None if
    the file has none.
    """
    scaling = given.get("rope_scaling", given.get("rope_parameters"))
    scaling = scaling if isinstance(scaling, Mapping) else {}
    most = given.get("max_position_embeddings")
    found = [most, scaling.get("original_max_position_embeddings")]
    plain, original = (one if type(one) is int and one > 0 else None for one in found)
    factor = scaling.get("factor")
    if original is not None and isinstance(factor, int | float) and 1 <= factor <= _MOST_SIZE:
        return max(plain or 0, int(original * factor))
    return plain


def _architecture(content: Mapping[str, Any], given: Mapping[str, Any], path: Path) -> str:
    named = content.get("architectures")
    if not isinstance(named, list) or not named:
        raise DataError(
            f"{path}: no key architectures, e.g. ['LlamaForCausalLM']; expected the config.json "
            "of a language model"
        )
    found = str(named[0])
    if found not in ARCHITECTURES:
        parts = [what for key, what in _NOT_COVERED.items() if given.get(key)]
        has = f" (it has {parts[0]})" if parts else ""
        raise DataError(
            f"{path}: architecture {found!r} is not "
            f"supported{has}{nearest(found, ARCHITECTURES)}; covered: {', '.join(ARCHITECTURES)}"
        )
    return found


def _check_covered(values: _Values, read: _Architecture) -> None:
    for key, what in _NOT_COVERED.items():
        if values.values.get(key) and not (read.is_sparse and what == _SPARSE):
            raise values.error(f"it has {what} ({key}), which is not supported")
    if 0 in values.items("attn_type_list"):
        raise values.error("it has linear attention (attn_type_list), which is not supported")


def _precision(text: str) -> Format:
    for one in FORMATS:
        if text == one or (text == "nvfp4" and one == "fp4"):
            return one
    raise UsageError(f"--precision {text}, expected one of {', '.join(FORMATS)}")


def _cache(text: str) -> CacheFormat:
    if text not in ("bf16", "fp8"):
        raise UsageError(f"--kv-precision {text}, expected bf16 or fp8")
    return "fp8" if text == "fp8" else "bf16"
