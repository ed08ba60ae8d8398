"""Reads `quantization_config` of a `config.json` as formats of a decoder's weights."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from cdmpp.comparison.llm.decoder import CacheFormat, Format, Formats
from cdmpp.errors import DataError

#: Part of a layer -> Hugging Face name of one of its matrices in the i-th layer.
_MATRICES = {
    "attention": "model.layers.{}.self_attn.o_proj",
    "dense": "model.layers.{}.mlp.down_proj",
    "experts": "model.layers.{}.mlp.experts.0.down_proj",
}
#: Keys that list modules in 16 bits.
_LISTS = ("ignore", "exclude_modules", "modules_to_not_convert", "ignored_layers")
_KNOWN = "fp8, mxfp4, modelopt (FP8, NVFP4), compressed-tensors, awq and gptq of 4 bits"


def stored_formats(
    content: Mapping[str, Any], depth: int, wide: Format, path: Path
) -> tuple[Formats, CacheFormat]:
    """Returns the formats of the weights and of the cache; 16 bits without `quantization_config`.

    Args:
        depth: number of layers; a part is in 16 bits if at least half of them are listed.
        wide: the 16-bit type.

    Raises:
        DataError: an unsupported quantisation.
    """
    inner = content.get("text_config")
    found = content.get("quantization_config") or (
        inner.get("quantization_config") if isinstance(inner, dict) else None
    )
    narrow = _expert_format(content, path)
    if found is None:
        return Formats(wide, wide, narrow or wide), "bf16"
    if not isinstance(found, dict):
        raise DataError(f"{path}: quantization_config is {found!r}, expected its keys")
    format = _format(found, path)
    listed = [str(one) for name in _LISTS for one in found.get(name) or ()]
    parts = {
        part: wide if _share(listed, matrix, depth) >= 0.5 else format
        for part, matrix in _MATRICES.items()
    }
    if format == "mxfp4" and not listed:  # MXFP4 is for experts
        parts |= {"attention": wide, "dense": wide}
    if narrow is not None:
        parts["experts"] = narrow
    return Formats(**parts), _cache(found)


def _expert_format(content: Mapping[str, Any], path: Path) -> Format | None:
    """Returns the experts' own format, such as DeepSeek-V4's: 4 bits with a scale per 32 elements;
    None without one.
    """
    named = content.get("expert_dtype")
    if named in (None, "fp8", "bf16"):
        return None
    if named != "fp4":
        raise DataError(f"{path}: expert_dtype is {named!r}, expected fp4, fp8 or bf16")
    return "mxfp4"


def _format(found: Mapping[str, Any], path: Path) -> Format:
    method, bits = str(found.get("quant_method", "")), found.get("bits")
    algorithm = str(found.get("quant_algo", ""))
    if method == "fp8":
        return "fp8_block" if found.get("weight_block_size") else "fp8"
    if method == "mxfp4":
        return "mxfp4"
    if method == "modelopt" and algorithm.upper() in ("FP8", "NVFP4"):
        return "fp8" if algorithm.upper() == "FP8" else "fp4"
    if method in ("awq", "gptq") and bits == 4:
        return "int4"
    if method == "compressed-tensors":
        groups = list(found.get("config_groups", {}).values())
        return _compressed(groups[0] if groups else {}, path)
    what = f"{method or 'without quant_method'} {algorithm or bits or ''}".strip()
    raise DataError(
        f"{path}: quantisation {what} is not supported; expected {_KNOWN}, or --precision"
    )


def _compressed(group: Mapping[str, Any], path: Path) -> Format:
    weights = group.get("weights") or {}
    bits, kind = weights.get("num_bits"), weights.get("type")
    is_wide = not group.get("input_activations")
    if (bits, kind) == (8, "float") and not is_wide:
        return "fp8_block" if weights.get("strategy") == "block" else "fp8"
    if (bits, kind) == (4, "float") and not is_wide:
        return "fp4"
    if (bits, kind) == (4, "int") and is_wide:
        return "int4"
    arithmetic = "16-bit" if is_wide else "narrow"
    raise DataError(
        f"{path}: compressed-tensors with {kind} weights of {bits} bits and {arithmetic} "
        f"activations are not supported; expected {_KNOWN}, or --precision"
    )


def _share(listed: Sequence[str], matrix: str, depth: int) -> float:
    """Returns the share of layers whose matrix is listed."""
    names = [matrix.format(place) for place in range(depth)]
    return sum(any(_is_listed(name, one) for one in listed) for name in names) / depth


def _is_listed(name: str, pattern: str) -> bool:
    """Whether a pattern matches a module: `re:` and an expression, a name with stars, or the name
    of the module or a parent.
    """
    if pattern.startswith("re:"):
        return re.match(pattern[3:], name) is not None
    starred = pattern if pattern.endswith("*") else f"{pattern}*"
    return fnmatchcase(name, starred) and (
        "*" in pattern or name == pattern or name.startswith(f"{pattern}.")
    )


def _cache(found: Mapping[str, Any]) -> CacheFormat:
    scheme = found.get("kv_cache_scheme") or {}
    algorithm = str(found.get("kv_cache_quant_algo", "")).upper()
    is_narrow = algorithm == "FP8" or (isinstance(scheme, dict) and scheme.get("num_bits") == 8)
    return "fp8" if is_narrow else "bf16"
