"""Operator graph of any torch module, from shapes only, without running it."""

from __future__ import annotations

import contextlib
import copy
import logging
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, get_args

import numpy as np

from cdmpp.errors import DataError, UsageError, first_line
from cdmpp.networks.graph.execution import Dtype, Layout
from cdmpp.networks.graph.graph import NetworkGraph

if TYPE_CHECKING:
    import torch
    from torch import nn

Method = Literal["fx", "export"]
METHODS: tuple[Method, ...] = get_args(Method)
_TYPES: dict[str, Dtype] = {
    "float32": "float32", "float16": "float16", "bfloat16": "bfloat16",
}  # fmt: skip

_log = logging.getLogger("cdmpp")


def torch_graph(
    module_or_factory: nn.Module | Callable[[], nn.Module],
    input_shapes: Sequence[tuple[int, ...]],
    *,
    batch: int,
    name: str,
    method: Method = "fx",
    dtypes: Sequence[torch.dtype] | None = None,
    in_both_layouts: bool = False,
) -> NetworkGraph:
    """Returns the operator graph of a network at one batch size.

    The module is traced in evaluation mode and left unchanged. Tensors are on the meta device,
    without content. Views and dropout are not operators. An operator outside `KINDS` has its own
    name.

    Args:
        module_or_factory: a module, or a function without arguments that returns one. The function
            is called with meta as the default device, so that no weights are allocated; if its code
            needs real values, it is called again without.
        input_shapes: shape of each input without the batch, e.g. `[(3, 224, 224)]`.
        batch: batch size, the first axis of every input.
        name: name of the graph.
        method: `fx` traces `forward` (milliseconds) and falls back to torch.export with a warning
            in the log; `export` uses torch.export, which is slower and supports more code.
        dtypes: type of each input; None = float32, or int64 for an input with one axis if the
            module has an embedding.
        in_both_layouts: whether `fx` also traces the module in channels_last for the copies in that
            format; otherwise the copies are those of NCHW.

    Raises:
        UsageError: an unknown method, a batch below 1, no input shape, or another number of types
            than of input shapes.
        DataError: the module cannot be created or traced, or has no operator.
    """
    import torch

    if method not in METHODS:
        raise UsageError(f"method {method!r}, expected one of {', '.join(METHODS)}")
    if batch < 1:
        raise UsageError(f"batch {batch}, expected at least 1")
    if not input_shapes:
        raise UsageError(
            f"{name}: no input shape; give one without the batch, e.g. [(3, 224, 224)]"
        )
    module, is_compiled = made_module(module_or_factory, name)
    given = list(dtypes or ())
    if dtypes is None:
        dtypes = _default_dtypes(module, input_shapes)
    if len(dtypes) != len(input_shapes):
        raise UsageError(f"{name}: {len(dtypes)} types for {len(input_shapes)} input shapes")
    weights = common_dtype([*parameter_dtypes(module), *given], name)
    if weights != "float32":
        module, dtypes = _in_float32(module), [_wide(one) for one in dtypes]
    inputs = _inputs(input_shapes, batch, dtypes, name, device="meta")
    loud = contextlib.redirect_stdout(sys.stderr)
    with evaluation_mode(module), torch.no_grad(), loud:
        if method == "fx":
            graph = _followed(module, inputs, batch, name, in_both_layouts=in_both_layouts)
        else:
            graph = _exported(module, inputs, batch, name)
    parts = list(module.parameters())
    return replace(
        graph, weights=weights, is_compiled=is_compiled, parameters=_elements(parts),
        trained=_elements(part for part in parts if part.requires_grad),
    )  # fmt: skip


def _elements(tensors: Iterable[torch.Tensor]) -> int:
    return sum(tensor.numel() for tensor in tensors)


def example_inputs(
    module_or_factory: nn.Module | Callable[[], nn.Module],
    input_shapes: Sequence[tuple[int, ...]],
    batch: int,
    name: str,
    dtypes: Sequence[torch.dtype] | None = None,
) -> tuple[nn.Module, list[torch.Tensor]]:
    """Returns the module with its weights, and inputs of zeros; see `torch_graph`.

    Raises:
        DataError: the module cannot be created or is not in float32, or the inputs do not fit into
            memory.
    """
    module, _ = made_module(module_or_factory, name, has_weights=True)
    check_float32([*parameter_dtypes(module), *(dtypes or ())], name)
    if dtypes is None:
        dtypes = _default_dtypes(module, input_shapes)
    return module, _inputs(input_shapes, batch, dtypes, name, device="cpu")


def _inputs(
    shapes: Sequence[tuple[int, ...]],
    batch: int,
    dtypes: Sequence[torch.dtype],
    name: str,
    *,
    device: str,
) -> list[torch.Tensor]:
    """Returns tensors of zeros, batch first."""
    import torch

    try:
        return [
            torch.zeros((batch, *shape), dtype=dtype, device=device)
            for shape, dtype in zip(shapes, dtypes, strict=True)
        ]
    except (RuntimeError, TypeError) as error:  # an overflow of sizes, or out of memory
        raise DataError(
            f"{name}: batch {batch} of inputs {', '.join('x'.join(map(str, s)) for s in shapes)} "
            f"cannot be created ({first_line(error)}); choose smaller ones"
        ) from None


def _followed(
    module: nn.Module, inputs: list[torch.Tensor], batch: int, name: str, *, in_both_layouts: bool
) -> NetworkGraph:
    """Returns the graph by torch.fx, or by torch.export if torch.fx fails."""
    try:
        graph = _traced(module, inputs, batch, name, "nchw")
    except Exception as error:  # whatever the module's own code raises
        why = first_line(error)
        try:
            graph = _exported(module, inputs, batch, name)
        except DataError as other:
            raise DataError(f"{other}; nor can torch.fx ({why})") from error
        _log.warning(
            "%s: traced with torch.export, because torch.fx cannot trace it (%s)", name, why
        )
        return graph
    return _with_both_layouts(graph, module, inputs) if in_both_layouts else graph


def _traced(
    module: nn.Module, inputs: list[torch.Tensor], batch: int, name: str, layout: Layout
) -> NetworkGraph:
    from cdmpp.networks.graph.assemble import Assembler
    from cdmpp.networks.graph.fx_trace import ShapeTracer

    assembler = Assembler(name, batch, layout)
    with _caches_kept(module):
        ShapeTracer(assembler, inputs).trace(module)
    return assembler.graph()


def _with_both_layouts(
    graph: NetworkGraph, module: nn.Module, inputs: list[torch.Tensor]
) -> NetworkGraph:
    """Returns a graph with the copies of both memory formats; unchanged if the module cannot be
    traced in channels_last or has other operators there.
    """
    import torch

    if "Conv" not in graph.kinds:
        return graph
    images = [
        one.contiguous(memory_format=torch.channels_last) if one.dim() == 4 else one
        for one in inputs
    ]
    try:
        other = _traced(module, images, graph.batch, graph.name, "nhwc")
    except Exception:  # whatever the module's own code raises
        return graph
    if other.kinds != graph.kinds:
        return graph
    return replace(graph, copies=np.stack([graph.copies[:, 0], other.copies[:, 1]], axis=1))


def _exported(module: nn.Module, inputs: list[torch.Tensor], batch: int, name: str) -> NetworkGraph:
    from cdmpp.networks.graph.torch_export import exported_graph

    with _caches_kept(module):
        return exported_graph(module, inputs, batch=batch, name=name)


def made_module(
    module_or_factory: Any, name: str, *, has_weights: bool = False
) -> tuple[nn.Module, bool]:
    """Returns the module, on the meta device if the factory allows it (see `torch_graph`), and
    whether it was compiled. Of a compiled module it returns the original module.

    Args:
        has_weights: whether to create weights, that is not on the meta device.

    Raises:
        UsageError: `module_or_factory` is neither a module nor callable.
        DataError: the factory fails or returns something else, or the module is scripted or
            quantised.
    """
    import torch

    with contextlib.redirect_stdout(sys.stderr):  # stdout is only for results
        module = _made(module_or_factory, name, has_weights=has_weights)
    inner = getattr(module, "_orig_mod", None)  # set by torch.compile
    is_compiled = isinstance(inner, torch.nn.Module)
    module = inner if isinstance(inner, torch.nn.Module) else module
    parts = list(module.modules())
    if any(isinstance(part, torch.jit.ScriptModule) for part in parts):
        raise DataError(
            f"{name}: the module is scripted or has a scripted part, which cannot be traced; "
            "give the module before torch.jit.script or torch.jit.trace"
        )
    if any(_is_quantised(part) for part in parts):
        raise DataError(
            f"{name}: quantised modules are not supported. Give the unquantised module, but note "
            "that its rates and bytes differ"
        )
    return module, is_compiled


def _is_quantised(part: nn.Module) -> bool:
    """Returns whether a module has quantised weights (torch.ao, torchao or bitsandbytes)."""
    kinds = [type(part).__module__, *(type(one).__module__ for one in part.parameters(False))]
    return any(
        kind.startswith(("torchao.", "bitsandbytes."))
        or (kind.startswith("torch.ao.nn.") and ".quantized." in f"{kind}.")
        for kind in kinds
    )


def parameter_dtypes(module: nn.Module) -> list[torch.dtype]:
    """Returns the types of a module's weights."""
    return [weight.dtype for weight in module.parameters()]


def common_dtype(dtypes: Iterable[torch.dtype], name: str) -> Dtype:
    """Returns the floating-point type of a network's weights and inputs; integers are ignored.

    Raises:
        DataError: there are several types, or an unsupported one.
    """
    found = sorted(
        {
            str(one).removeprefix("torch.")
            for one in dtypes
            if one.is_floating_point or one.is_complex
        }
    ) or ["float32"]
    if len(found) == 1 and found[0] in _TYPES:
        return _TYPES[found[0]]
    raise DataError(
        f"{name}: its weights and inputs are of {', '.join(found)}, expected one type of "
        f"{', '.join(_TYPES)}. For float32 weights under autocast give --dtype amp-fp16 or "
        "amp-bf16; for 8- and 4-bit transformers use `cdmpp compare --transformer`"
    )


def check_float32(dtypes: Iterable[torch.dtype], name: str) -> None:
    """Checks that a network to be compiled by TVM is in float32.

    Raises:
        DataError: its weights or inputs have another type.
    """
    found = common_dtype(dtypes, name)
    if found != "float32":
        raise DataError(
            f"{name}: its weights or inputs are {found}, expected float32 for networks compiled "
            "by TVM; 16 bits are supported for networks run by torch on GPUs"
        )


def _in_float32(module: nn.Module) -> nn.Module:
    """Returns a copy on the meta device with float32 weights."""
    import torch
    from torch import nn

    meta: dict[int, Any] = {}
    for tensor in (*module.parameters(), *module.buffers()):
        empty = torch.empty_like(tensor, dtype=_wide(tensor.dtype), device="meta")
        is_parameter = isinstance(tensor, nn.Parameter)
        meta[id(tensor)] = nn.Parameter(empty, tensor.requires_grad) if is_parameter else empty
    return copy.deepcopy(module, meta)


def _wide(dtype: torch.dtype) -> torch.dtype:
    import torch

    return torch.float32 if dtype.is_floating_point else dtype


def _made(module_or_factory: Any, name: str, *, has_weights: bool) -> nn.Module:
    import torch
    from torch import nn

    if isinstance(module_or_factory, nn.Module):
        return module_or_factory
    if not callable(module_or_factory):
        raise UsageError(
            f"{name}: {type(module_or_factory).__name__}, expected a torch module or a function "
            "that returns one"
        )
    try:
        try:
            with contextlib.nullcontext() if has_weights else torch.device("meta"):
                module = module_or_factory()
        except (RuntimeError, NotImplementedError):  # its code reads values
            if has_weights:
                raise
            module = module_or_factory()
    except (Exception, SystemExit) as error:  # whatever the factory's own code raises
        raise DataError(f"{name}: the factory failed ({first_line(error)})") from error
    if not isinstance(module, nn.Module):
        raise DataError(
            f"{name}: the factory returned {type(module).__name__}, expected a torch module"
        )
    return module


def _default_dtypes(module: nn.Module, shapes: Sequence[tuple[int, ...]]) -> list[torch.dtype]:
    import torch
    from torch import nn

    if all(len(shape) != 1 for shape in shapes):
        return [torch.float32] * len(shapes)
    kinds = (nn.Embedding, nn.EmbeddingBag)
    has_embedding = any(isinstance(part, kinds) for part in module.modules())
    return [torch.int64 if has_embedding and len(shape) == 1 else torch.float32 for shape in shapes]


@contextlib.contextmanager
def _caches_kept(module: nn.Module) -> Iterator[None]:
    """Restores the attributes, lists and dictionaries of modules that tracing changes."""
    kept = [
        (values, values.copy())
        for part in module.modules()
        for values in (part.__dict__, *part.__dict__.values())
        if isinstance(values, (dict, list))
    ]
    try:
        yield
    finally:
        for values, before in kept:
            if isinstance(values, list):
                values[:] = before
            else:
                values.clear()
                values.update(before)


@contextlib.contextmanager
def evaluation_mode(module: nn.Module) -> Iterator[None]:
    """Sets a module to evaluation mode inside the context and restores it afterwards."""
    training = [part for part in module.modules() if part.training]
    try:
        for part in training:
            part.training = False
        yield
    finally:
        for part in training:
            part.training = True
