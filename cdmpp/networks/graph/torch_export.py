"""Operator graph of a module by `torch.export`, which is slower than fx and supports more code."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from cdmpp.errors import DataError, first_line
from cdmpp.networks.account import Account
from cdmpp.networks.graph.assemble import Assembler
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.operator import (
    OperatorCall,
    TensorInfo,
    needs_record,
    tensor_infos,
)
from cdmpp.networks.graph.torch_names import call_options, function_name
from cdmpp.processes.native_stderr import hidden_python_output

if TYPE_CHECKING:
    import torch
    from torch import fx, nn


def exported_graph(
    module: nn.Module, inputs: Sequence[torch.Tensor], *, batch: int, name: str
) -> NetworkGraph:
    """Returns the operator graph of a module without running it.

    Args:
        module: module in evaluation mode.
        inputs: tensors on the meta device, batch first.
        batch: batch size.
        name: name of the graph.

    Raises:
        DataError: torch.export cannot trace the module, or it has no operator.
    """
    import torch
    from torch._subclasses.fake_tensor import FakeTensorMode

    devices = {weight.device for weight in module.parameters()}
    device = devices.pop() if len(devices) == 1 else torch.device("cpu")
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):  # tensors without memory
            arguments = tuple(
                torch.empty(tensor.shape, dtype=tensor.dtype, device=device) for tensor in inputs
            )
        with hidden_python_output():
            program = torch.export.export(module, arguments)
    except Exception as error:  # whatever the module's own code raises
        raise DataError(
            f"{name}: torch.export cannot trace the module ({first_line(error)}); check the "
            "input shapes (without the batch)"
        ) from error
    user_inputs = set(program.graph_signature.user_inputs)
    assembler = Assembler(name, batch)
    weights: set[fx.Node] = set()
    origins: dict[fx.Node, tuple[int, ...]] = {}
    for node in program.graph.nodes:
        if node.op == "placeholder":
            if node.name in user_inputs:
                origins[node] = ()
            else:
                weights.add(node)
        elif node.op == "get_attr":
            weights.add(node)
        elif node.op == "call_function":
            _check_sizes(node, name)
            _add(assembler, node, weights, origins)
    return assembler.graph()


def _check_sizes(node: fx.Node, name: str) -> None:
    """Checks that the outputs of a call have fixed sizes.

    Raises:
        DataError: a size depends on the data.
    """
    import torch

    for value in torch.utils._pytree.tree_leaves(node.meta.get("val")):
        shape = getattr(value, "shape", ())
        if any(isinstance(side, torch.SymInt) for side in shape):
            raise DataError(
                f"{name}: the size of what {function_name(node.target, node.args)} makes depends "
                f"on the data, got {'x'.join(map(str, shape))}; expected fixed sizes. Replace it, "
                "e.g. x[mask] by torch.where(mask, x, 0)"
            )


def _add(
    assembler: Assembler,
    node: fx.Node,
    weights: set[fx.Node],
    origins: dict[fx.Node, tuple[int, ...]],
) -> None:
    """Adds a call to the graph, unless it depends on weights only or is a view."""
    outputs = _infos(node)
    active = [source for source in node.all_input_nodes if source not in weights]
    if not active or not outputs:
        weights.add(node)  # depends on weights only, or is a size
        return
    weights_read = [source for source in node.all_input_nodes if source in weights]
    inputs, read = (
        tuple(info for source in group for info in _infos(source))
        for group in (active, weights_read)
    )
    name = function_name(node.target, node.args)
    options = call_options(name, node.args, node.kwargs)
    account = _account(node) if needs_record(name) else None
    call = OperatorCall(name, inputs, read, tuple(outputs), options, account)
    came_from = dict.fromkeys(origin for source in active for origin in origins[source])
    scopes = node.meta.get("nn_module_stack", ())
    origins[node], _ = assembler.record(call, tuple(came_from), scopes)


def _account(node: fx.Node) -> Account:
    """Returns the account of the aten operators that a call dispatches."""
    from torch.fx.node import map_aggregate

    from cdmpp.networks.graph.dispatch import recorded

    def value(argument: Any) -> Any:
        return argument.meta.get("val") if hasattr(argument, "meta") else argument

    args, kwargs = map_aggregate((node.args, node.kwargs), value)
    return recorded(node.target, args, kwargs)  # type: ignore[arg-type]


def _infos(node: fx.Node) -> list[TensorInfo]:
    return tensor_infos(node.meta.get("val"))
