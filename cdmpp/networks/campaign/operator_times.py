"""Times of the operators of a network inside the network, which is run operator by operator.

Every operator runs after its inputs, with the cache contents that they left, so its time is its
contribution to the network's time. The calls are the network's own calls.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import fx, nn
from torch.nn import functional

from cdmpp.networks.campaign.labels import FEWEST_REPEATS
from cdmpp.networks.graph.assemble import Assembler
from cdmpp.networks.graph.fx_trace import ShapeTracer
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.torch_graph import evaluation_mode


class OperatorRunner:
    """Runs a network operator by operator.

    Attributes:
        graph: the operators; times are in their order.
    """

    def __init__(self, module: nn.Module, inputs: Sequence[torch.Tensor]) -> None:
        assembler = Assembler("network", len(inputs[0]))
        self._tracer = ShapeTracer(assembler, [value.to("meta") for value in inputs])
        with evaluation_mode(module), torch.no_grad():
            nodes = list(self._tracer.trace(module).nodes)
        self.graph: NetworkGraph = assembler.graph()
        self._inputs = list(inputs)
        last_use = {used: node for node in nodes for used in node.all_input_nodes}
        self._steps = [
            (node, [used for used in node.all_input_nodes if last_use[used] is node])
            for node in nodes
            if node in self._tracer.values
        ]
        self._output = nodes[-1].all_input_nodes[0]

    def times(
        self,
        mode: Literal["infer", "train"],
        update: Callable[[], None] | None = None,
        *,
        runs: int,
        budget_s: float,
    ) -> tuple[float, ...]:
        """Returns [operators] seconds: medians over runs, after one warm-up run.

        A training step is forward, backward and update; the update's time is divided in proportion
        to bytes of weights. Work outside operators (the loss, sums of gradients) is left out; a
        view belongs to the operator before it. A call that is several operators of the graph (an
        attention module) divides its time in proportion to floating-point operations.

        Args:
            mode: mode in which the module is.
            update: the optimiser's step, for training; None = no update.
            runs: maximum number of runs.
            budget_s: seconds after which no run is started; three runs are always made.
        """
        self._run(mode, update)
        found: list[NDArray[np.float64]] = []
        started = time.perf_counter()
        while len(found) < runs:
            if len(found) >= FEWEST_REPEATS and time.perf_counter() - started >= budget_s:
                break
            found.append(self._run(mode, update))
        return tuple(np.median(found, axis=0).tolist())

    def _run(
        self, mode: Literal["infer", "train"], update: Callable[[], None] | None
    ) -> NDArray[np.float64]:
        clock = _Clock(len(self.graph.kinds), self._tracer.operators, self.graph.flops)
        output = self._forward(clock, with_hooks=mode == "train")
        if mode == "train":
            targets = torch.zeros(len(self._inputs[0]), dtype=torch.int64)
            loss = functional.cross_entropy(output, targets)
            clock.last = time.perf_counter()
            loss.backward()  # type: ignore[no-untyped-call]
            if update is not None:
                started = time.perf_counter()
                update()
                weights = self.graph.column("weight_size")
                taken = time.perf_counter() - started
                clock.seconds += taken * weights / max(float(weights.sum()), 1.0)
        return clock.seconds

    def _forward(self, clock: _Clock, *, with_hooks: bool) -> Any:
        tracer = self._tracer
        values: dict[fx.Node, Any] = {}
        inputs = iter(self._inputs)
        seen: set[Any] = set()
        for node, dead in self._steps:
            if node.op == "placeholder":
                values[node] = next(inputs)
                continue
            if node.op == "get_attr":
                values[node] = tracer.constants[node]
                continue
            args = fx.node.map_arg(node.args, values.__getitem__)
            kwargs = fx.node.map_arg(node.kwargs, values.__getitem__)
            call = _call(node, tracer)
            started = time.perf_counter()
            values[node] = call(*args, **kwargs)
            clock.add(node, time.perf_counter() - started)
            if with_hooks:
                _follow_backward(values[node], node, clock, seen)
            del args, kwargs
            for used in dead:
                del values[used]
        return values[self._output]


class _Clock:
    """Seconds by operator."""

    def __init__(
        self, count: int, operators: dict[fx.Node, tuple[int, ...]], flops: NDArray[np.float64]
    ) -> None:
        self.seconds = np.zeros(count)
        self.last = 0.0
        self._operators = operators
        self._flops = flops

    def add(self, node: fx.Node, seconds: float) -> None:
        """Adds seconds to the operators of a node."""
        own = list(self._operators.get(node, ()))
        if len(own) == 1:
            self.seconds[own[0]] += seconds
        elif own:
            work = self._flops[own] + 1.0
            self.seconds[own] += seconds * work / work.sum()

    def lap(self, node: fx.Node) -> None:
        """Adds the time since the last lap to a node."""
        now = time.perf_counter()
        self.add(node, now - self.last)
        self.last = time.perf_counter()


def _call(node: fx.Node, tracer: ShapeTracer) -> Callable[..., Any]:
    if node.op == "call_module":
        return tracer.leaves[node]
    if node.op == "call_method":
        name = str(node.target)
        return lambda first, *args, **kwargs: getattr(first, name)(*args, **kwargs)
    assert callable(node.target)
    return node.target


def _follow_backward(value: Any, node: fx.Node, clock: _Clock, seen: set[Any]) -> None:
    """Registers hooks that add the backward time of a node's new autograd functions to the node."""
    if not isinstance(value, torch.Tensor) or value.grad_fn is None:
        return
    waiting = [value.grad_fn]
    while waiting:
        function = waiting.pop()
        if function is None or function in seen:
            continue
        seen.add(function)
        function.register_hook(lambda *_: clock.lap(node))
        waiting += [source for source, _ in function.next_functions if source is not None]
