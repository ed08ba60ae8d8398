"""Checks predictions for public, torch and generated networks against independent bounds.

torchvision, timm and transformers are used if they are installed, with weights on the meta device.
The bounds come from PyTorch's own `FlopCounterMode` and from the bytes of weights.
"""

from __future__ import annotations

import importlib
import json
import math
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn.modules.module import register_module_forward_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import FlopCounterMode

from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import CdmppError
from cdmpp.files.atomic import write_text
from cdmpp.networks.architectures.build import build_module, input_shapes
from cdmpp.networks.architectures.generator import SearchSpace, generate
from cdmpp.networks.predict import NetworkPredictor
from cdmpp.text import interval_text, markdown_table, seconds_text

DEVICES = ("epyc-avx512-1c", "t4", "a100", "h100", "mi300x")
RIGHT = ("answered", "marked", "refused")
WRONG = ("below the bound", "outside its interval", "far above the bound", "traceback")
_LEAD = """{networks:,} networks in float32, each asked of {devices} devices in both modes. An
answer is below the bound where its low end is below the operations that PyTorch's `FlopCounterMode`
counts at the peak (convolutions may save three of four; a CPU's clock may be 1.6 times the nominal
one; AMD's matrix units twice its peak; attention as three products of TF32), below the weights that
no cache holds at the memory bandwidth, or below a launch. It is far above where it has no reason
and is more than 100 times the sum of both, the results of every operator at the memory bandwidth
and a launch (CPU: 2 µs) an operator, for a training step 4 times that. Marked: it has a reason.
Before: commit d87bf169. torchvision, timm (every 24th model) and transformers are not needed by
`cdmpp`; those of a package that is missing are left out."""
_CONVOLUTION_SAVING, _CPU_CLOCK, _CPU_BANDWIDTH, _AMD_MATRIX, _TF32_PRODUCTS = 4, 1.6, 1.5, 2, 3
_MOST, _MOST_OF_TRAINING, _CALL_S, _LAUNCH_S = 100.0, 400.0, 2e-6, 1e-6
_EVERY_TIMM_MODEL, _GENERATED = 24, 20
_TRANSFORMERS = (
    "albert", "bart", "bert", "bloom", "clip_text_model", "cohere", "convnext", "deberta", "deit",
    "dinov2", "distilbert", "electra", "falcon", "gemma", "gpt2", "gpt_neox", "llama", "mamba",
    "mistral", "mixtral", "mpt", "olmo", "opt", "phi", "qwen2", "qwen3", "qwen3_moe", "roberta",
    "segformer", "stablelm", "starcoder2", "swin", "t5", "vit", "xlm-roberta",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """A network: `PACKAGE:name`, its constructor, and its input shape without the batch."""

    name: str
    make: Callable[[], nn.Module]
    shape: tuple[int, ...]
    dtype: torch.dtype = torch.float32


class Counted(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts operations and bytes of a module that runs on the meta device.

    Attributes:
        products, saved, fused: operations of plain products, of convolutions, and of products that
            a fused attention kernel may compute.
        weights: bytes of the parameters of linear, convolution and recurrent layers.
        moved: bytes of the result of every operator.
        calls: number of operators that are not views.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.products = self.saved = self.fused = self.weights = self.moved = 0.0
        self.calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an aten operator and counts its results."""
        found = func(*args, **(kwargs or {}))
        if not func.is_view:
            self.calls += 1
            parts = found if isinstance(found, (tuple, list)) else [found]
            self.moved += sum(one.nbytes for one in parts if isinstance(one, torch.Tensor))
        return found

    @classmethod
    def of(cls, case: Case) -> Counted:
        """Returns the counts of a case at batch 1."""
        self, flop, seen = cls(), FlopCounterMode(display=False), set[int]()

        def called(module: nn.Module, *_: Any) -> None:
            own = (nn.Linear, nn.modules.conv._ConvNd, nn.RNNBase)
            if isinstance(module, own) and id(module) not in seen:
                seen.add(id(module))
                self.weights += sum(one.nbytes for one in module.parameters())

        hook = register_module_forward_hook(called)
        try:
            module = _made(case.make).eval().requires_grad_(False)
            value = torch.zeros((1, *case.shape), dtype=case.dtype, device="meta")
            with torch.device("meta"), torch.no_grad(), self, flop:
                module(value)
        finally:
            hook.remove()
        for operator, count in flop.get_flop_counts().get("Global", {}).items():
            if "conv" in str(operator):
                self.saved += count
            elif "attention" in str(operator) or "bmm" in str(operator):
                self.fused += count
            else:
                self.products += count
        return self

    def bounds_s(self, device: DeviceSpec) -> tuple[float, float]:
        """Returns (lower bound, whole time), seconds.

        The lower bound holds for every prediction. A multiple of the whole time is the value above
        which a prediction needs a reason.
        """
        peak, is_gpu = device.peak_fp32_flop_per_s or math.inf, device.kind == "gpu"
        bandwidth, launch_s = device.mem_bandwidth_bytes_per_s or math.inf, device.launch_s
        faster = (_AMD_MATRIX if device.vendor == "AMD" else 1) if is_gpu else _CPU_CLOCK
        rate = faster * peak
        fused = max(rate, (device.peak_tensor_flop_per_s or 0.0) / 2 / _TF32_PRODUCTS)
        work_s = self.products / rate + self.saved / _CONVOLUTION_SAVING / rate + self.fused / fused
        caches = device.l2_bytes, device.l3_bytes
        beyond = max(0.0, self.weights - sum(one or 0 for one in caches)) / bandwidth
        if device.kind == "cpu":  # a label of one core may have the caches of all
            beyond = 0.0 if device.l3_bytes is None else beyond / _CPU_BANDWIDTH
        least_s = max(work_s, beyond, (launch_s or _LAUNCH_S) if is_gpu else 0.0)
        all_flop = self.products + self.saved + self.fused
        call_s = (launch_s or _LAUNCH_S) if is_gpu else _CALL_S
        whole_s = all_flop / peak + (self.weights + self.moved) / bandwidth + self.calls * call_s
        return least_s, whole_s


def _made(make: Callable[[], nn.Module]) -> nn.Module:
    try:
        with torch.device("meta"):
            return make()
    except (RuntimeError, NotImplementedError):  # the constructor reads values of tensors
        return make().to("meta")


def experiment(out: Path = Path("runs/network-sweep.json"), every: int = 1) -> None:
    """Predicts all networks and writes the page.

    Args:
        out: JSON file of the outcomes.
        every: stride over the networks.
    """
    rows = ask(list(cases())[::every], out)
    print(page(rows))


def page(rows: list[dict[str, Any]]) -> str:
    """Writes the page and returns it."""
    from lab.pages import write_page
    from lab.stamp import stamp

    wrong = [
        [row["name"], row["device"], row["outcome"], row["said"], row["bound"]]
        for row in rows if row["outcome"] in WRONG
    ]  # fmt: skip
    networks = len({row["name"] for row in rows})
    text = "\n\n".join([
        "# Networks: right, marked or refused",
        _LEAD.format(networks=networks, devices=len(DEVICES)),
        "## Answers by package", summary(rows),
        "## What is wrong",
        markdown_table(["network", "device", "outcome", "said", "bound"], wrong) if wrong
        else "Nothing.",
    ])  # fmt: skip
    totals = dict(Counter(row["outcome"] for row in rows))
    found = stamp("python -m lab run network-sweep")
    return write_page("network-sweep", text, {"networks": networks, "outcomes": totals}, found)


def ask(asked: Sequence[Case], out: Path) -> list[dict[str, Any]]:
    """Returns the outcomes, one row per network, device and mode; writes them to `out`."""
    warnings.simplefilter("ignore")
    predictor = NetworkPredictor.load()
    rows: list[dict[str, Any]] = []
    for case in asked:
        rows += _outcomes(predictor, case)
        write_text(out, json.dumps(rows, indent=1))
    return rows


def summary(rows: Iterable[dict[str, Any]]) -> str:
    """Returns the counts of outcomes by package; a refused network counts once."""
    rows = list(rows)
    counts = Counter((row["name"].split(":")[0], row["outcome"]) for row in rows)
    names = {name: {row["name"] for row in rows if row["name"].startswith(name + ":")}
             for name, _ in counts}  # fmt: skip
    return markdown_table(
        ["networks of", "networks", *RIGHT, *WRONG],
        [[name, str(len(own)), *(f"{counts[name, one]:,}" for one in (*RIGHT, *WRONG))]
         for name, own in sorted(names.items())],
    )  # fmt: skip


def _outcomes(predictor: NetworkPredictor, case: Case) -> Iterator[dict[str, Any]]:
    """Yields one row per device and mode, or a single one if the prediction fails."""
    row: dict[str, Any] = {"name": case.name, "device": "", "said": "", "bound": "", "why": ""}
    try:
        graphs = predictor.graphs(
            case.make, (case.shape,), (1,), name=case.name, dtypes=(case.dtype,)
        )
        answers = predictor.predict(graphs, DEVICES)
    except CdmppError as error:
        yield {**row, "outcome": "refused", "why": str(error)}
        return
    except Exception as error:  # an unexpected error is an outcome
        said = f"{error!r:.200} ({traceback.extract_tb(error.__traceback__)[-1]})"
        yield {**row, "outcome": "traceback", "said": said}
        return
    try:
        counted = Counted.of(case)
    except Exception:  # the model reads values: without counts nothing is far above
        counted = Counted()
        counted.moved = math.inf
    for one in answers:
        ends = one.time_s.value, one.time_s.low, one.time_s.high
        least_s, whole_s = counted.bounds_s(get_device(one.device))
        most_s = (_MOST if one.mode == "infer" else _MOST_OF_TRAINING) * whole_s
        yield {
            **row, "device": f"{one.device}, {one.mode}", "why": "; ".join(one.reasons),
            "outcome": _outcome(ends, least_s, most_s, bool(one.reasons)), "ends": ends,
            "bound": f"{seconds_text(least_s)} to {seconds_text(most_s)}",
            "said": interval_text(*ends) if None not in ends else str(ends),
        }  # fmt: skip


def _outcome(
    ends: tuple[float | None, float | None, float | None],
    least_s: float,
    most_s: float,
    is_marked: bool,
) -> str:
    time_s, low_s, high_s = ends
    if time_s is None or low_s is None or high_s is None or not low_s <= time_s <= high_s:
        return WRONG[1]
    if low_s == high_s:
        return WRONG[1]
    if low_s < 0.99 * least_s:
        return WRONG[0]
    if is_marked:
        return "marked"
    return "answered" if time_s <= most_s else WRONG[2]


def cases() -> Iterator[Case]:
    """Yields all networks; skips a package that is missing or incompatible."""
    for name, make, shape in _layers():
        yield Case(f"torch:{name}", make, shape)
    space = SearchSpace()
    for number, one in enumerate(generate(space, _GENERATED, seed=48, flops_of=lambda _: 1.0)):
        is_tokens = one.spec.transformer is not None and one.spec.transformer.source == "tokens"
        dtype = torch.int64 if is_tokens else torch.float32
        yield Case(
            f"generated:{number}", partial(build_module, one.spec),
            input_shapes(one.spec)[0], dtype,
        )  # fmt: skip
    for package in (_of_torchvision, _of_timm, _of_transformers):
        try:
            yield from package()
        except Exception as error:
            print(f"{package.__name__}: left out ({error!r:.200})")


def _layers() -> list[tuple[str, Callable[[], nn.Module], tuple[int, ...]]]:
    """Returns layers of torch.nn that consist of more than one product."""
    encoder = nn.TransformerEncoderLayer
    return [
        ("lstm", lambda: nn.LSTM(256, 512, 2, batch_first=True), (128, 256)),
        ("gru", lambda: nn.GRU(256, 512, batch_first=True, bidirectional=True), (128, 256)),
        ("rnn", lambda: nn.RNN(256, 512, batch_first=True), (128, 256)),
        ("lstm_cell", lambda: nn.LSTMCell(1024, 1024), (1024,)),
        ("gru_cell", lambda: nn.GRUCell(1024, 1024), (1024,)),
        ("attention", lambda: nn.TransformerEncoder(encoder(256, 8, 1024, batch_first=True), 4),
         (512, 256)),
        ("transposed_2d", lambda: nn.ConvTranspose2d(64, 128, 4, 2, 1), (64, 64, 64)),
        ("transposed_3d", lambda: nn.ConvTranspose3d(32, 32, 3), (32, 16, 16, 16)),
        ("grouped", lambda: nn.Conv2d(256, 256, 3, padding=1, groups=32), (256, 56, 56)),
        ("conv_1d", lambda: nn.Conv1d(64, 128, 9), (64, 4096)),
        ("conv_3d", lambda: nn.Conv3d(16, 32, 3), (16, 16, 56, 56)),
        ("unfold", lambda: nn.Unfold(3), (64, 64, 64)),
    ]  # fmt: skip


def _of_torchvision() -> Iterator[Case]:
    models: Any = importlib.import_module("torchvision.models")

    for module in (models, models.segmentation):
        for name in models.list_models(module=module):
            options: dict[str, Any] = {"weights": None}
            if name in ("googlenet", "inception_v3"):
                options["init_weights"] = False
            if module is models.segmentation:
                options["weights_backbone"] = None
            side = 299 if name == "inception_v3" else 224
            make = partial(models.get_model, name, **options)
            yield Case(f"torchvision:{name}", make, (3, side, side))


def _of_timm() -> Iterator[Case]:
    timm: Any = importlib.import_module("timm")

    for name in timm.list_models()[::_EVERY_TIMM_MODEL]:
        found = timm.models.get_pretrained_cfg(name, allow_unregistered=True)
        shape = (3, 224, 224) if found is None else tuple(found.input_size)
        yield Case(f"timm:{name}", partial(timm.create_model, name), shape)


def _of_transformers() -> Iterator[Case]:
    transformers: Any = importlib.import_module("transformers")

    for kind in _TRANSFORMERS:
        config = transformers.AutoConfig.for_model(kind)
        for name in ("num_hidden_layers", "num_layers", "n_layer"):
            if isinstance(getattr(config, name, None), int):
                setattr(config, name, 2)
        config.use_cache = config.return_dict = False
        is_image = hasattr(config, "image_size") or kind in ("convnext", "segformer")
        shape, dtype = ((3, 224, 224), torch.float32) if is_image else ((128,), torch.int64)
        make = partial(transformers.AutoModel.from_config, config)
        yield Case(f"transformers:{kind}", make, shape, dtype)
