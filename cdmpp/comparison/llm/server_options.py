"""Launch options of serving frameworks that the simulation uses, under the frameworks' names."""

from __future__ import annotations

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
_EXAMPLE = {
    "vllm": "max_num_seqs=256", "sglang": "max_running_requests=256", "trtllm": "max_batch_size=256"
}  # fmt: skip


@dataclass(frozen=True)
class _Option:
    """What an option sets.

    Attributes:
        field: field of `Rules`.
        kind: values that it takes: whole numbers from 1, shares (0, 1], or true and false.
        is_shared: whether replicas of attention share the number equally.
    """

    field: str
    kind: Literal["whole", "share", "flag"]
    is_shared: bool = False


_OPTIONS: Mapping[Backend, Mapping[str, _Option]] = {
    "vllm": {
        "max_num_batched_tokens": _Option("step_tokens", "whole"),
        "max_num_seqs": _Option("sequences", "whole"),
        "gpu_memory_utilization": _Option("memory_share", "share"),
    },
    "sglang": {
        "chunked_prefill_size": _Option("step_tokens", "whole", is_shared=True),
        "max_running_requests": _Option("sequences", "whole", is_shared=True),
        "mem_fraction_static": _Option("memory_share", "share"),
        "enable_mixed_chunk": _Option("is_mixed", "flag"),
        "scheduler_recv_interval": _Option("poll_steps", "whole"),
    },
    "trtllm": {
        "max_num_tokens": _Option("step_tokens", "whole"),
        "max_batch_size": _Option("sequences", "whole"),
        "free_gpu_memory_fraction": _Option("memory_share", "share"),
        "batch_wait_timeout_iters": _Option("wait_steps", "whole"),
        "batch_wait_max_tokens_ratio": _Option("wait_share", "share"),
    },
}
#: Names of all options of all backends.
SERVER_OPTIONS: tuple[str, ...] = tuple(name for one in _OPTIONS.values() for name in one)


def parse_server_options(text: str) -> dict[str, str]:
    """Returns name -> value of `NAME=VALUE,...`.

    Raises:
        UsageError: the text has another form, or a name occurs twice.
    """
    return named_values(text, "--server-options", f"NAME=VALUE,..., e.g. {_EXAMPLE['vllm']}")


def rules_of(backend: Backend, options: Mapping[str, Any], parallel: Parallel) -> Rules:
    """Returns the scheduling rules of a server.

    Args:
        options: launch options by the backend's names, with `_` or `-`; numbers, booleans or texts.
        parallel: its replicas share some numbers.

    Raises:
        UsageError: an unknown option, or a value out of range.
    """
    known = _OPTIONS[backend]
    set_to: dict[str, Any] = {}
    for given, value in options.items():
        name = given.strip().lstrip("-").replace("-", "_")
        if name not in known:
            raise UsageError(_unknown(name, backend))
        one = known[name]
        number = _read(name, one, value)
        set_to[one.field] = max(1, number // parallel.data) if one.is_shared else number
    return replace(RULES[backend], **set_to)


def _unknown(name: str, backend: Backend) -> str:
    known = _OPTIONS[backend]
    others = [other for other, options in _OPTIONS.items() if name in options]
    hint = f" (an option of {others[0]})" if others else nearest(name, known)
    return f"unknown server option {name!r} of {backend}{hint}; expected one of {', '.join(known)}"


def _read(name: str, option: _Option, value: Any) -> Any:
    """Returns the value of an option as its field has it."""
    text = str(value).strip().lower()
    if option.kind == "flag":
        if text not in ("true", "false"):
            raise UsageError(f"server option {name}={value!s:.40}: expected true or false")
        return text == "true"
    is_whole = option.kind == "whole"
    try:
        number = float(text)
    except ValueError:
        number = float("nan")
    if is_whole and number.is_integer() and 1 <= number <= _MOST:
        return int(number)
    if not is_whole and 0.0 < number <= 1.0:
        return number
    expected = f"a whole number from 1 to {_MOST}" if is_whole else "a share above 0, at most 1"
    raise UsageError(f"server option {name}={value!s:.40}: expected {expected}")
