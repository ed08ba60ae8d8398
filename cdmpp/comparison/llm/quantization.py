"""Reads `quantization_config` of a `config.json` as formats of a decoder's weights."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence, Set
from fnmatch import translate
from itertools import accumulate
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
#: Maximum number of steps of all patterns in all layers: each repeat multiplies those of a pattern
#: by up to the length of a name, each alternative by 2.
_MOST_STEPS = 2**29
_MOST_NAME = 48
_MOST_PATTERN = 200
#: Repeated groups, which take exponential time if they have repeats, and flags.
_UNBOUNDED = re.compile(r"\)[*+{]|\(\?[^:!=]")
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
    listed = {str(one) for name in _LISTS for one in _items(found, name, path)}
    patterns = [one for one in sorted(listed) if one.startswith("re:") or "*" in one]
    if sum(map(_steps, patterns)) * depth > _MOST_STEPS:
        raise DataError(
            f"{path}: the patterns of {', '.join(_LISTS)} are too many, or have too many *"
        )
    matchers = [_matcher(one, path) for one in patterns]
    parts = {
        part: wide if _share(listed, matchers, matrix, depth) >= 0.5 else format
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
        groups = found.get("config_groups") or {}
        group = next(iter(groups.values()), {}) if isinstance(groups, dict) else groups
        return _compressed(group, path)
    what = f"{method or 'without quant_method'} {algorithm or bits or ''}".strip()
    raise DataError(
        f"{path}: quantisation {what} is not supported; expected {_KNOWN}, or --precision"
    )


def _compressed(group: Any, path: Path) -> Format:
    weights = (group.get("weights") or {}) if isinstance(group, dict) else None
    if not isinstance(weights, dict):
        raise DataError(f"{path}: config_groups has {group!r:.60}, expected keys with weights")
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


def _items(found: Mapping[str, Any], name: str, path: Path) -> list[Any]:
    items = found.get(name) or []
    if not isinstance(items, list):
        raise DataError(f"{path}: {name} is {items!r:.60}, expected a list of modules")
    return items


def _share(
    listed: Set[str], matchers: Sequence[Callable[[str], object]], matrix: str, depth: int
) -> float:
    """Returns the share of layers whose matrix, or a module that has it, is listed."""
    count = 0
    for place in range(depth):
        name = matrix.format(place)
        modules = accumulate(name.split("."), "{}.{}".format)
        count += not listed.isdisjoint(modules) or any(matches(name) for matches in matchers)
    return count / depth


def _steps(pattern: str) -> int:
    """Returns the maximum number of steps of a pattern for a name, at least those of a call."""
    repeats, choices = (sum(map(pattern.count, of)) for of in ("*+{", "?|"))
    return int(max(10_000, _MOST_NAME ** min(repeats, 9) * 2 ** min(choices, 50)))


def _matcher(pattern: str, path: Path) -> Callable[[str], object]:
    """Returns a function that tells whether a module's name matches `re:` and an expression, or a
    name with stars.
    """
    is_regex = pattern.startswith("re:")
    try:
        if len(pattern) <= _MOST_PATTERN and not (is_regex and _UNBOUNDED.search(pattern)):
            return re.compile(pattern[3:] if is_regex else translate(f"{pattern}*")).match
    except (re.error, OverflowError):
        pass
    raise DataError(
        f"{path}: pattern {pattern!r:.60} of {', '.join(_LISTS)} is not supported; expected a "
        f"regular expression without repeated groups, of at most {_MOST_PATTERN} characters"
    )


def _cache(found: Mapping[str, Any]) -> CacheFormat:
    scheme = found.get("kv_cache_scheme") or {}
    algorithm = str(found.get("kv_cache_quant_algo", "")).upper()
    is_narrow = algorithm == "FP8" or (isinstance(scheme, dict) and scheme.get("num_bits") == 8)
    return "fp8" if is_narrow else "bf16"
