"""Traces a module's `forward` with `torch.fx` and concrete shapes.

Values are tensors on the meta device, which have shapes but no content, so nothing is executed.
Shapes are plain numbers during tracing, so the module's code may use them.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from cdmpp.networks.account import Account
from cdmpp.networks.graph.assemble import Assembler
from cdmpp.networks.graph.dispatch import Recorder
from cdmpp.networks.graph.fx_shapes import function_shape, module_shape
from cdmpp.networks.graph.operator import (
    OperatorCall,
    TensorInfo,
    needs_record,
    tensor_infos,
)
from cdmpp.networks.graph.torch_names import (
    call_options,
    function_name,
    module_name,
    module_options,
)

#: Modules of torch.nn with submodules that are traced as one operator.
_WHOLE = (nn.MultiheadAttention,)


class ShapeProxy(fx.Proxy):
    """Proxy of a tensor during tracing, with its shape and type."""

    def __getattr__(self, k: str) -> Any:
        value = getattr(self.tracer.values[self.node], k)  # type: ignore[attr-defined]
        if isinstance(value, torch.Tensor):  # x.T, or a field of a named tuple
            return self.tracer.create_proxy("call_function", getattr, (self, k), {})
        return fx.proxy.Attribute(self, k) if callable(value) else value

    def __len__(self) -> int:
        return len(self.tracer.values[self.node])  # type: ignore[attr-defined]

    def __iter__(self) -> Iterator[fx.Proxy]:
        return iter([self[place] for place in range(len(self))])  # type: ignore[index]


class ShapeTracer(fx.Tracer):
    """Traces a module and passes every operator to an `Assembler`.

    Attributes:
        values: node -> its tensors on the meta device.
        leaves: node of a module's call -> the module.
        constants: node of a weight or constant -> the tensor.
        operators: node -> its operators; for a view, the operator before it.
    """

    def __init__(self, assembler: Assembler, inputs: Sequence[torch.Tensor]) -> None:
        # `math` needs no wrapping, because sizes are numbers.
        super().__init__(autowrap_modules=())  # type: ignore[arg-type]
        self.values: dict[fx.Node, Any] = {}
        self._assembler = assembler
        self._inputs = inputs
        self._weights: set[fx.Node] = set()
        self._origins: dict[fx.Node, tuple[int, ...]] = {}
        self._constants: dict[int, tuple[torch.Tensor, fx.Proxy]] = {}
        self.leaves: dict[fx.Node, nn.Module] = {}
        self.constants: dict[fx.Node, torch.Tensor] = {}
        self.operators: dict[fx.Node, tuple[int, ...]] = {}
        self._calls = 0
        self._scopes: list[str] = []
        self._leaf: nn.Module | None = None
        self._is_evaluating = False
        self._account: Account | None = None

    def create_args_for_root(
        self, root_fn: Any, is_module: bool, concrete_args: Any = None
    ) -> tuple[Any, list[Any]]:
        """Creates one placeholder per input; other parameters keep their defaults."""
        del is_module, concrete_args
        proxies = []
        for number, value in enumerate(self._inputs):
            node = self.create_node("placeholder", f"input_{number}", (), {})
            self.values[node], self._origins[node] = value, ()
            proxies.append(self.proxy(node))
        return root_fn, [self.root, *proxies]

    def proxy(self, node: fx.Node) -> fx.Proxy:
        """Returns the proxy of a node, which lives as long as the code keeps the tensor."""
        proxy = ShapeProxy(node, self)
        origins = self._origins.get(node, ())
        if origins:
            weakref.finalize(proxy, self._assembler.let_go, origins).atexit = False
        return proxy

    def create_arg(self, a: Any) -> Any:
        """Converts tensors that are no proxies (weights, constants) to nodes."""
        if isinstance(a, torch.Tensor):
            return self._constant(a).node
        return super().create_arg(a)

    def getattr(self, attr: str, attr_val: Any, parameter_proxy_cache: dict[str, Any]) -> Any:
        """Returns a proxy instead of a weight."""
        if self._is_evaluating or not isinstance(attr_val, torch.Tensor):
            return attr_val
        return self._constant(attr_val)

    def call_module(self, m: nn.Module, forward: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        """Records a leaf module; traces into any other module."""
        if self._is_evaluating:
            return forward(*args, **kwargs)
        if not self._is_leaf(m):
            self._calls += 1
            self._scopes.append(str(self._calls))
            try:
                return forward(*args, **kwargs)
            finally:
                self._scopes.pop()
        self._leaf = m
        return self.create_proxy("call_module", type(m).__name__, args, kwargs)

    def create_proxy(
        self,
        kind: str,
        target: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        name: str | None = None,
        type_expr: Any = None,
        proxy_factory_fn: Any = None,
    ) -> Any:
        """Records a call; returns plain values (sizes, flags) unchanged."""
        module, self._leaf = self._leaf, None
        node = self.create_node(kind, target, self.create_arg(args), self.create_arg(kwargs), name)
        value = self._evaluate(node, module)
        if not tensor_infos(value):
            return value
        self.values[node] = value
        if module is not None:
            self.leaves[node] = module
        self._record(node, module)
        return self.proxy(node)

    def iter(self, obj: fx.Proxy) -> Iterator[Any]:
        """Returns an iterator over a tensor or a tuple of tensors."""
        return iter(obj)

    def to_bool(self, obj: fx.Proxy) -> bool:
        """Raises a TraceError, because a condition needs the value of a tensor."""
        raise fx.proxy.TraceError("a decision on the values of a tensor")

    def _is_leaf(self, module: nn.Module) -> bool:
        if not type(module).__module__.startswith(("torch.nn", "torch.ao.nn")):
            return False
        return isinstance(module, _WHOLE) or not module._modules

    def _constant(self, tensor: torch.Tensor) -> fx.Proxy:
        kept = self._constants.get(id(tensor))
        if kept is None:
            node = self.create_node("get_attr", f"constant_{len(self._constants)}", (), {})
            self.values[node] = tensor.detach().to("meta")
            self.constants[node] = tensor
            self._weights.add(node)
            kept = self._constants[id(tensor)] = (tensor, self.proxy(node))
        return kept[1]

    def _evaluate(self, node: fx.Node, module: nn.Module | None) -> Any:
        self._account = None
        args = _materialise(node.args, self.values)
        kwargs = _materialise(node.kwargs, self.values)
        if module is not None:
            known = module_shape(module, args, kwargs, self._assembler.layout)
        else:
            is_function = node.op == "call_function"
            known = function_shape(node.target, args, kwargs) if is_function else None
        if known is not None:
            return known
        recorder = Recorder() if needs_record(_name(node, module)) else None
        self._is_evaluating = True
        try:
            with recorder or contextlib.nullcontext():
                if module is not None:
                    return _run_module(module, args, kwargs)
                if node.op == "call_method":
                    return getattr(args[0], str(node.target))(*args[1:], **kwargs)
                return node.target(*args, **kwargs)  # type: ignore[operator]
        finally:
            self._is_evaluating = False
            self._account = None if recorder is None else recorder.account()

    def _record(self, node: fx.Node, module: nn.Module | None) -> None:
        """Adds the node to the graph, unless it depends on weights only or is a view."""
        sources = node.all_input_nodes
        active = [source for source in sources if source not in self._weights]
        if not active and module is None:
            self._weights.add(node)  # depends on weights only
            return
        inputs, weights = (
            [info for source in group for info in tensor_infos(self.values[source])]
            for group in (active, [source for source in sources if source in self._weights])
        )
        name = _name(node, module)
        if module is None:
            options = call_options(name, node.args, node.kwargs)
        else:
            options = module_options(module)
            weights += _weight_infos(module)
        outputs = tuple(tensor_infos(self.values[node]))
        call = OperatorCall(name, tuple(inputs), tuple(weights), outputs, options, self._account)
        origins = dict.fromkeys(origin for source in active for origin in self._origins[source])
        made_by, own = self._assembler.record(call, tuple(origins), self._scopes)
        self._origins[node], self.operators[node] = made_by, own


def _name(node: fx.Node, module: nn.Module | None) -> str:
    """Returns the canonical name of a node's call."""
    if module is not None:
        return module_name(type(module).__name__)
    return function_name(node.target, node.args)


def _materialise(value: Any, values: dict[fx.Node, Any]) -> Any:
    """Returns arguments with nodes replaced by their tensors."""
    if isinstance(value, fx.Node):
        return values[value]
    if isinstance(value, tuple) and not hasattr(value, "_fields"):
        return tuple(_materialise(item, values) for item in value)
    if isinstance(value, list):
        return [_materialise(item, values) for item in value]
    if isinstance(value, dict):
        return {key: _materialise(item, values) for key, item in value.items()}
    if isinstance(value, (slice, tuple)):  # a slice, or a named tuple
        return fx.node.map_arg(value, values.__getitem__)
    return value


def _run_module(module: nn.Module, args: Any, kwargs: Any) -> Any:
    """Runs a leaf module on the meta device, whatever the device of its weights. A recurrent module
    is run on one token, because torch processes tokens one by one.
    """
    if isinstance(module, nn.RNNBase) and args and isinstance(args[0], torch.Tensor):
        x, *rest = args
        axis = 1 if module.batch_first and x.dim() == 3 else 0
        if x.dim() in (2, 3) and x.shape[axis] > 1:
            out, state = _run_module(module, (x.narrow(axis, 0, 1), *rest), kwargs)
            return out.new_empty((*x.shape[:-1], out.shape[-1])), state
    weights = {
        name: tensor.detach().to("meta")
        for name, tensor in (*module.named_parameters(), *module.named_buffers())
    }
    return torch.func.functional_call(module, weights, args, kwargs)


def _weight_infos(module: nn.Module) -> list[TensorInfo]:
    """Returns the parameters and buffers of a leaf module without counters."""
    tensors: list[torch.Tensor | None]
    if module._modules:
        tensors = [*module.parameters(), *module.buffers()]
    else:
        tensors = [*module._parameters.values(), *module._buffers.values()]
    return tensor_infos([tensor for tensor in tensors if tensor is not None and tensor.dim() > 0])
