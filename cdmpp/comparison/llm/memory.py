"""Memory of a decoder on one device, and the lower bound of a step's time."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from cdmpp.comparison.llm.decoder import (
    CACHE_BYTES,
    LOGIT_BYTES,
    WEIGHT_BYTES,
    WIDE_BYTES,
    Attention,
    Decoder,
    Experts,
    Format,
    GatedFeedForward,
    Layer,
    Parallel,
    SparseAttention,
    check_parallel,
    matrix_weights,
)
from cdmpp.comparison.llm.kernels import ServingStep
from cdmpp.devices.spec import DeviceSpec

PEAKS: Mapping[Format, str] = {
    "bf16": "peak_bf16_flop_per_s", "fp16": "peak_tensor_flop_per_s",
    "fp8": "peak_fp8_flop_per_s", "fp8_block": "peak_fp8_flop_per_s",
    "fp4": "peak_fp4_flop_per_s", "mxfp4": "peak_bf16_flop_per_s", "int4": "peak_bf16_flop_per_s",
}  # fmt: skip


def missing_rate(model: Decoder, device: DeviceSpec) -> str:
    """Returns which rate that the decoder needs is unknown for a device, or that the device is a
    CPU; empty = none.
    """
    if device.kind == "cpu":
        return (
            f"{device.name} is a CPU, and language models are predicted for GPUs; choose one with "
            "a known rate for bf16, e.g. h100, l40s, b200 (all: cdmpp device list --kind gpu)"
        )
    for one in model.used_formats:
        if getattr(device, PEAKS[one]) is None:
            other = one == "bf16" and device.peak_tensor_flop_per_s
            hint = "; predict it with --precision fp16" if other else ""
            return f"{device.name} has no known rate for {one} (`{PEAKS[one]}`){hint}"
    return ""


@dataclass(frozen=True)
class MemoryNeed:
    """Memory of one device during a pass, in bytes.

    Attributes:
        weights: its share of all weights.
        cache: keys and values of all tokens of all sequences.
        activations: the maximum that is live inside a layer, and the logits.
    """

    weights: float
    cache: float
    activations: float

    @property
    def total(self) -> float:
        """Total bytes."""
        return self.weights + self.cache + self.activations


def weight_bytes(model: Decoder, parallel: Parallel) -> float:
    """Returns a device's share of all weights: layers in their formats; embedding, last product,
    routers and norms in 16 bits.

    Raises:
        UsageError: the devices cannot share the decoder.
    """
    check_parallel(model, parallel)
    layers = sum(_layer_bytes(model, layer, parallel) for layer in model.layers)
    vocab = model.vocab_on(parallel.tensor)
    wide = WIDE_BYTES * ((1 if model.is_tied else 2) * vocab * model.width + model.norms)
    return layers / parallel.pipeline + wide


def _layer_bytes(model: Decoder, layer: Layer, parallel: Parallel) -> float:
    formats, found = model.formats, 0.0
    weights = matrix_weights(layer.feed_forward, model.width)
    attention = layer.attention.weights_on(model.width, parallel.tensor)
    found += layer.count * attention * WEIGHT_BYTES[formats.attention]
    found += layer.count * weights["dense"] / parallel.tensor * WEIGHT_BYTES[formats.dense]
    experts = layer.count * weights.get("experts", 0) / parallel.stage
    found += experts * WEIGHT_BYTES[formats.experts]
    return found + layer.count * weights.get("router", 0) * WIDE_BYTES


def cache_bytes(model: Decoder, parallel: Parallel, length: int) -> float:
    """Returns the cached bytes of a sequence of `length` tokens on one device."""
    return _of_cache(model, parallel, lambda one: one.cached(length, parallel.tensor))


def _read_bytes(model: Decoder, parallel: Parallel, length: int) -> float:
    """Returns the cached bytes that a new token of a sequence reads on one device."""

    def needed(one: Attention) -> int:
        needs = one.read if isinstance(one, SparseAttention) else one.cached
        return needs(length, parallel.tensor)

    return _of_cache(model, parallel, needed)


def _of_cache(model: Decoder, parallel: Parallel, elements: Callable[[Attention], int]) -> float:
    found = sum(layer.count * elements(layer.attention) for layer in model.layers)
    return float(found * CACHE_BYTES[model.kv_dtype]) / parallel.pipeline


def activation_bytes(model: Decoder, parallel: Parallel, step: ServingStep) -> float:
    """Returns the maximum live bytes in a step: the residual, the inputs and outputs of a layer's
    widest kernel, counted as in `cdmpp.networks`, and the logits.
    """
    widest = 0
    for layer in model.layers:
        attention, part = layer.attention.alive(parallel.tensor), layer.feed_forward
        if isinstance(part, GatedFeedForward):
            fed = 3 * part.ffn // parallel.tensor
        else:  # the copies for this device's experts
            copies = part.active * parallel.data / parallel.expert
            fed = round(copies * (2 * model.width + 3 * part.ffn // parallel.expert_tensor))
        widest = max(widest, model.width + attention, fed)
    alive = WIDE_BYTES * step.tokens * (model.streams * model.width + widest)
    vocab = parallel.tensor * model.vocab_on(parallel.tensor)
    return float(alive + LOGIT_BYTES * step.rows * vocab)


def memory_need(
    model: Decoder, parallel: Parallel, step: ServingStep, sequences: int, length: int
) -> MemoryNeed:
    """Returns the memory need of a device, without that of libraries.

    Args:
        step: tokens that are processed at once.
        sequences: sequences of this replica with a cache of `length` tokens each.

    Raises:
        UsageError: the devices cannot share the decoder.
    """
    weights = weight_bytes(model, parallel)
    cache = sequences * cache_bytes(model, parallel, length)
    return MemoryNeed(weights, cache, activation_bytes(model, parallel, step))


def least_step_s(
    model: Decoder, parallel: Parallel, step: ServingStep, device: DeviceSpec
) -> float:
    """Returns a lower bound of a step's seconds: its products at the peak of their type, or all
    weights but the embedding (of experts, those of one token) and the sequences' keys and values at
    the memory bandwidth, minus the size of the last-level caches, because kernels timed alone find
    weights there.
    """
    whole = replace(parallel, pipeline=1)  # stages read their parts in sequence
    vocab = model.vocab_on(parallel.tensor)
    embedding = 0.0 if model.is_tied else WIDE_BYTES * vocab * model.width
    read = weight_bytes(model, whole) - embedding - _idle_expert_bytes(model, whole)
    read += step.sequences * _read_bytes(model, whole, step.context)
    caches = parallel.pipeline * ((device.l2_bytes or 0) + (device.l3_bytes or 0))
    bandwidth = device.mem_bandwidth_bytes_per_s
    moves_s = max(0.0, read - caches) / bandwidth if bandwidth else 0.0
    work_s = 0.0
    for format, products in _products(model, step).items():
        rate = getattr(device, PEAKS[format])
        work_s += 2.0 * products / parallel.tensor / rate if rate else 0.0
    return max(moves_s, work_s)


def _idle_expert_bytes(model: Decoder, parallel: Parallel) -> float:
    found = 0.0
    for layer in model.layers:
        part = layer.feed_forward
        if isinstance(part, Experts):
            weights = matrix_weights(part, model.width)["experts"] * (
                1 - part.active / part.experts
            )
            if parallel.expert > 1:  # all of a token's experts may be on other devices
                weights = matrix_weights(part, model.width)["experts"]
            bytes_each = WEIGHT_BYTES[model.formats.experts]
            found += layer.count * weights * bytes_each / parallel.stage / parallel.pipeline
    return found


def _products(model: Decoder, step: ServingStep) -> dict[Format, float]:
    """Returns multiply-adds by weight format, of all devices of a replica. Those of experts are for
    the tokens of the whole group over all its devices, the same number for each.
    """
    found: dict[Format, float] = defaultdict(int)
    for layer in model.layers:
        part, tokens = layer.feed_forward, step.tokens * layer.count
        found[model.formats.attention] += tokens * layer.attention.weights(model.width)
        weights = matrix_weights(part, model.width)
        if weights["dense"]:
            found[model.formats.dense] += tokens * weights["dense"]
        if isinstance(part, Experts):
            share = part.active / part.experts
            found[model.formats.experts] += tokens * weights["experts"] * share
    found[model.main_format] += step.rows * model.vocab * model.width
    return found
