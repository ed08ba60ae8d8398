"""Seconds of any step, interpolated in a table of a few hundred steps predicted at once."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cdmpp.comparison.llm.decoder import Decoder, Parallel, SparseAttention
from cdmpp.comparison.llm.kernels import WHOLE_BLOCK, ServingStep
from cdmpp.comparison.llm.times import KernelModel, StepTime, step_times
from cdmpp.devices.spec import DeviceSpec

_SEQUENCES = tuple(2**power for power in range(11))
_CONTEXTS = tuple(2**power for power in range(6, 18))
_TOKENS = tuple(
    sorted({*_SEQUENCES, *(3 * 2**power for power in range(13)), *(2**p for p in range(11, 15))})
)
#: Tokens in a cache at which frameworks are compared.
_MIDDLE = 2048
_PROMPTS: tuple[int, ...] = tuple(2**power for power in range(5, 18))
_ATTENTION, _LOGITS = ("attention", WHOLE_BLOCK), ("logits", "logits of all devices")


class _Line:
    """A positive function with log-log linear interpolation between known points."""

    def __init__(self, places: Sequence[float], values: Sequence[float]) -> None:
        self._x = [math.log(one) for one in places]
        self._y = [math.log(max(one, 1e-12)) for one in values]

    def __call__(self, place: float) -> float:
        x = math.log(max(place, 1e-9))
        right = min(max(bisect_right(self._x, x), 1), len(self._x) - 1)
        x0, x1, y0, y1 = *self._x[right - 1 : right + 1], *self._y[right - 1 : right + 1]
        slope = (y1 - y0) / (x1 - x0)
        if x < self._x[0]:
            return math.exp(self._y[0])
        return math.exp(y0 + slope * (x - x0))


@dataclass(frozen=True)
class StepTable:
    """Times of steps of one decoder on one device.

    Attributes:
        spread: ends of the kernels' interval over their value, for a medium step.
        is_seen: whether all kernels were measured on the device.
        _frameworks: minimum and maximum time of a step with any framework's kernels, relative to
            this one's.
        _reasons: reason for low confidence -> its minimum tokens in caches, and of a prompt.
    """

    _decode: _Line
    _prefill: _Line
    _logits: _Line
    _of_prompt: _Line
    _of_caches: tuple[_Line, ...]
    spread: tuple[float, float]
    is_seen: bool
    _frameworks: tuple[_Line, _Line]
    _reasons: Mapping[str, tuple[float, float]]
    _has_blocks: bool

    @classmethod
    def of(
        cls, model: Decoder, parallel: Parallel, device: DeviceSpec, kernels: KernelModel,
        software: str | None = None, others: Sequence[str] = (),
    ) -> StepTable:  # fmt: skip
        """Returns the table of a decoder.

        Args:
            software: see `step_times`.
            others: frameworks to compare with, see `of_frameworks`.

        Raises:
            UsageError: the devices cannot share the decoder.
            CdmppError: no model covers the device.
        """
        caches = [ServingStep(sequences=n, context=c) for n in _SEQUENCES for c in _CONTEXTS]
        decodes = [ServingStep(sequences=n, context=_CONTEXTS[0]) for n in _TOKENS]
        prompts = [ServingStep(prompts=1, chunk=length) for length in _PROMPTS]
        found = step_times(
            model, parallel, [*caches, *decodes, *prompts], device, kernels, software
        )
        of_caches = found[: len(caches)]
        of_tokens = found[len(caches) : len(caches) + len(decodes)]
        of_prompts = found[len(caches) + len(decodes) :]
        width = len(_CONTEXTS)
        middle = of_caches[width * 5 + 5].ends
        steps = [ServingStep(sequences=n, context=_MIDDLE) for n in _SEQUENCES]
        each = [
            [one.ends[0] for one in step_times(model, parallel, steps, device, kernels, name)]
            for name in (software, *others)
        ]
        ratios = [[one / own for one in times] for own, *times in zip(each[0], *each, strict=True)]
        return cls(
            _Line(_TOKENS, [_rest(one) for one in of_tokens]),
            _Line(_PROMPTS, [_rest(one) for one in of_prompts]),
            _Line(_TOKENS, [_sum(one, _LOGITS) for one in of_tokens]),
            _Line(_PROMPTS, [_sum(one, _ATTENTION) for one in of_prompts]),
            tuple(
                _Line(_CONTEXTS, [
                    one.ends[0] - _rest(one) - _sum(one, _LOGITS)
                    for one in of_caches[place * width : (place + 1) * width]
                ])
                for place in range(len(_SEQUENCES))
            ),
            (middle[1] / middle[0], middle[2] / middle[0]), found[0].is_seen,
            (_Line(_SEQUENCES, list(map(min, ratios))), _Line(_SEQUENCES, list(map(max, ratios)))),
            _least([*caches, *decodes, *prompts], found),
            any(isinstance(layer.attention, SparseAttention) for layer in model.layers),
        )  # fmt: skip

    def of_frameworks(self, sequences: int) -> tuple[float, float]:
        """Returns factors of the minimum and maximum time of a step with any framework's kernels.
        Their range measures how much the implementation of such kernels matters.
        """
        low, high = self._frameworks
        return low(sequences), high(sequences)

    def reasons(self, cached: float, prompt: int) -> tuple[str, ...]:
        """Returns reasons for low confidence at these numbers of cached and prompt tokens."""
        return tuple(
            reason
            for reason, (tokens, length) in self._reasons.items()
            if tokens <= cached or length <= prompt
        )

    def seconds(
        self, tokens: int, past: int, sequences: int, context: float, *, prompt: int
    ) -> float:
        """Returns the seconds of a step.

        Args:
            tokens: prompt tokens to process.
            past: earlier tokens of their prompt.
            sequences: sequences that generate a token.
            context: tokens in the cache of each.
            prompt: tokens of a whole prompt.
        """
        found = self._decode(tokens + sequences)
        if tokens:
            found += max(0.0, self._prefill(tokens) - self._decode(tokens))
            each = min(tokens, max(1, prompt - past))
            if self._has_blocks:
                found += self._of_blocks(tokens + sequences, each, past)
            else:
                share = 1.0 - (past / (past + each)) ** 2
                found += tokens / each * share * self._of_prompt(past + each)
        if sequences:
            found += self._logits(sequences) + self._of_sequences(sequences, context)
            if tokens and self._has_blocks:  # the prompts' blocks include their products
                found -= self._of_sequences(sequences, _CONTEXTS[0])
        return found

    def _of_blocks(self, tokens: int, each: int, past: int) -> float:
        """Returns the seconds of blocks with their products: the time of the shortest prompt, which
        reads the weights, and for every further token its increment in a prompt of `past + each`.
        """
        few = _PROMPTS[0]
        known, end = max(past, few), max(past + each, 2 * few)
        each_s = max(0.0, self._of_prompt(end) - self._of_prompt(known)) / (end - known)
        return self._of_prompt(few) + max(0, tokens - few) * each_s

    def _of_sequences(self, sequences: int, context: float) -> float:
        power = math.log2(sequences)
        left = min(int(power), len(self._of_caches) - 2)
        near, far = self._of_caches[left](context), self._of_caches[left + 1](context)
        return float(near * (far / near) ** (power - left))


def _least(
    steps: Sequence[ServingStep], found: Sequence[StepTime]
) -> dict[str, tuple[float, float]]:
    least: dict[str, tuple[float, float]] = {}
    for step, one in zip(steps, found, strict=True):
        cached = float(step.sequences * step.context) if step.sequences else math.inf
        length = float(step.chunk) if step.prompts else math.inf
        for reason in one.reasons:
            known = least.get(reason, (math.inf, math.inf))
            least[reason] = min(known[0], cached), min(known[1], length)
    return least


def _sum(one: StepTime, names: Sequence[str]) -> float:
    return sum(part.seconds for part in one.operators if part.what in names)


def _rest(one: StepTime) -> float:
    return sum(part.seconds for part in one.operators if part.what not in (*_ATTENTION, *_LOGITS))
