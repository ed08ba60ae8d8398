"""Launch options of serving frameworks that the simulation uses, under the frameworks' names."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from cdmpp.comparison.llm.decoder import Parallel
from cdmpp.comparison.llm.schedule import Rules
from cdmpp.config import named_values
from cdmpp.errors import UsageError
from cdmpp.text import nearest

Backend = Literal["vllm", "sglang", "trtllm"]
BACKENDS: tuple[Backend, ...] = ("vllm", "sglang", "trtllm")
#: Backend -> its default scheduling rules: SGLang processes prompts in separate steps.
RULES: Mapping[Backend, Rules] = {
    "vllm": Rules(8192), "sglang": Rules(8192, is_mixed=False), "trtllm": Rules(8192),
}  # fmt: skip
_MOST = 2**24
#: Minimum tokens of a step; smaller steps would make simulations slow.
_LEAST_TOKENS = 64


@dataclass(frozen=True)
class _Option:
    """What an option sets.

    Attributes:
        field: field of `Rules`.
        kind: values that it takes: whole numbers from `least`, shares from 0 to 1 (above 0 if
            `least` is), or true and false.
        least: minimum.
        shared_by: fields of `Parallel` whose parts share the number equally.
    """

    field: str
    kind: Literal["whole", "share", "flag"]
    least: int = 1
    shared_by: tuple[str, ...] = ()


_FRACTION = _Option("memory_share", "share")
#: Backend -> name of an option -> what it sets.
SERVER_OPTIONS: Mapping[Backend, Mapping[str, _Option]] = {
    "vllm": {
        "max_num_batched_tokens": _Option("step_tokens", "whole", _LEAST_TOKENS),
        "max_num_seqs": _Option("sequences", "whole", shared_by=("pipeline",)),
        "gpu_memory_utilization": _FRACTION,
    },
    "sglang": {
        "chunked_prefill_size": _Option("step_tokens", "whole", _LEAST_TOKENS, ("data",)),
        "max_running_requests": _Option("sequences", "whole", shared_by=("data", "pipeline")),
        "mem_fraction_static": _FRACTION,
        "enable_mixed_chunk": _Option("is_mixed", "flag"),
        "scheduler_recv_interval": _Option("poll_steps", "whole"),
    },
    "trtllm": {
        "max_num_tokens": _Option("step_tokens", "whole", _LEAST_TOKENS),
        "max_batch_size": _Option("sequences", "whole"),
        "free_gpu_memory_fraction": _FRACTION,
        "kv_cache_free_gpu_memory_fraction": _FRACTION,
        "batch_wait_timeout_iters": _Option("wait_steps", "whole", 0),
        "batch_wait_max_tokens_ratio": _Option("wait_share", "share", 0),
    },
}


def parse_server_options(text: str) -> dict[str, str]:
    """Returns name -> value of `NAME=VALUE,...`.

    Raises:
        UsageError: the text has another form, or a name occurs twice.
    """
    return named_values(text, "--server-options", "NAME=VALUE,..., e.g. max_num_seqs=256")


def read_options(backend: Backend, options: Mapping[str, Any]) -> dict[str, int | float | bool]:
    """Returns name -> value of launch options.

    Args:
        options: by the backend's names, with `_` or `-`; numbers, booleans or texts.

    Raises:
        UsageError: an unknown option, one that is given twice, or a value out of range.
    """
    known = SERVER_OPTIONS[backend]
    found: dict[str, int | float | bool] = {}
    for given, value in options.items():
        name = str(given).strip().lstrip("-").replace("-", "_")
        if name not in known:
            raise UsageError(_unknown(name, backend))
        other = next((one for one in found if known[one].field == known[name].field), None)
        if other is not None:
            what = "is given twice" if other == name else f"sets what {other} sets"
            raise UsageError(f"server option {name} {what}; give one of them")
        found[name] = _read(name, known[name], value)
    return found


def rules_of(backend: Backend, options: Mapping[str, Any], parallel: Parallel) -> Rules:
    """Returns the scheduling rules of an attention replica and stage of a server.

    Args:
        options: as in `read_options`.
        parallel: its parts share some numbers.

    Raises:
        UsageError: as `read_options`; or a number is too small to be shared.
    """
    set_to: dict[str, Any] = {}
    for name, value in read_options(backend, options).items():
        one = SERVER_OPTIONS[backend][name]
        parts = math.prod(getattr(parallel, field) for field in one.shared_by)
        if one.shared_by and value < one.least * parts:
            raise UsageError(
                f"server option {name}={value}: expected at least {one.least * parts}, because "
                f"{parts} replicas and stages share it"
            )
        set_to[one.field] = value // parts if one.shared_by else value
    found = replace(RULES[backend], **set_to)
    if not found.is_mixed:
        return found
    return replace(found, sequences=min(found.sequences, found.step_tokens))


def _unknown(name: str, backend: Backend) -> str:
    known = SERVER_OPTIONS[backend]
    others = [other for other, options in SERVER_OPTIONS.items() if name in options]
    hint = f" (an option of {others[0]})" if others else nearest(name, known)
    return f"unknown server option {name!r} of {backend}{hint}; expected one of {', '.join(known)}"


def _read(name: str, option: _Option, value: Any) -> int | float | bool:
    """Returns the value of an option as its field has it."""
    text = str(value).strip().lower()
    if option.kind == "flag":
        if text not in ("true", "false"):
            raise UsageError(f"server option {name}={value!s:.40}: expected true or false")
        return text == "true"
    is_whole = option.kind == "whole"
    try:
        number = float(text.replace("_", "?"))
    except ValueError:
        number = float("nan")
    if is_whole and number.is_integer() and option.least <= number <= _MOST:
        return int(number)
    if not is_whole and (0.0 < number <= 1.0 or number == option.least == 0):
        return number
    share = "a share above 0, at most 1" if option.least else "a share from 0 to 1"
    expected = f"a whole number from {option.least} to {_MOST}" if is_whole else share
    raise UsageError(f"server option {name}={value!s:.40}: expected {expected}")
