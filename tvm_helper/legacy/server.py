"""Process in the side environment that lowers programs: one JSON value per line.

`tvm_helper.legacy.client` starts it as a plain file. It imports only the old TVM and the standard
library. Responses go to the original standard output, and TVM's output to the standard error. The
functions below document requests and responses. A lowered program is the JSON node graph of a TIR
function at the level of the compact AST: after bound inference and index simplification, before
flattening, vectorising and unrolling.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

_MAX_ERROR = 300


def serve() -> None:
    """Handles the requests on the standard input until it ends."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # keeps TVM's output out of the responses
    tvm = _load_tvm()
    _say(answers, {"tvm": str(tvm.__version__)})
    kinds: dict[str, Callable[[Any, dict[str, Any]], Iterator[dict[str, Any]]]] = {
        "autotvm": _autotvm,
        "ansor": _ansor,
        "metaschedule": _metaschedule,
    }
    for line in sys.stdin:
        request = json.loads(line)
        for answer in kinds[request["kind"]](tvm, request):
            _say(answers, answer)
        _say(answers, {"done": True})


def _say(stream: Any, value: dict[str, Any]) -> None:
    stream.write(json.dumps(value) + "\n")
    stream.flush()


def _load_tvm() -> Any:
    """Imports the old TVM and prepares its templates."""
    import tvm
    import tvm.topi

    _accept_untransposed_weights(tvm)
    return tvm


@contextmanager
def _for_features(tvm: Any) -> Iterator[None]:
    """Replaces the constant matrices of a Winograd convolution by ones.

    TVM inlines these matrices as long chains of selections; the features of the original cdmpp
    count a constant instead.
    """
    from tvm import te
    from tvm.contrib.pickle_memoize import Cache
    from tvm.topi.nn import winograd_util

    def const_matrix(matrix: Any, name: str = "const_matrix") -> Any:
        dtype = str(matrix.dtype)
        return te.compute(
            matrix.shape,
            lambda *_: tvm.tir.const(1.0, dtype),
            name=name,
            attrs={"const_matrix": True},
        )

    def forget() -> None:
        """Clears TVM's cache of the matrices."""
        for cache in Cache.cache_by_key.values():
            cache.cache.clear()

    original = winograd_util.const_matrix
    winograd_util.const_matrix = const_matrix
    forget()
    try:
        yield
    finally:
        winograd_util.const_matrix = original
        forget()


@contextmanager
def _as_measured(tvm: Any) -> Iterator[None]:
    """Makes templates leave out the Winograd filter transform, which tuning does not measure."""
    scope = tvm.autotvm.GLOBAL_SCOPE
    scope.in_tuning = True
    try:
        yield
    finally:
        scope.in_tuning = False


def _accept_untransposed_weights(tvm: Any) -> None:
    """Makes the dense templates accept weights of shape (input, output).

    Logs of other builds of TVM have such tasks; the templates schedule both layouts equally.
    Weights whose last axis is the input size are (output, input), as in every TVM.
    """
    from tvm import te
    from tvm.topi import nn

    dense = nn.dense

    def dense_of_either(data: Any, weight: Any, bias: Any = None, out_dtype: Any = None) -> Any:
        (rows, inner), shape = map(int, data.shape), tuple(map(int, weight.shape))
        if bias is not None or shape[1] == inner or shape[0] != inner:
            return dense(data, weight, bias, out_dtype)
        k = te.reduce_axis((0, inner), name="k")
        dtype = out_dtype or data.dtype
        return te.compute(
            (rows, shape[1]),
            lambda i, j: te.sum(data[i, k].astype(dtype) * weight[k, j].astype(dtype), axis=k),
            name="T_matmul_NN",
            tag="dense",
        )

    nn.dense = dense_of_either


def _lower(tvm: Any, schedule: Any, arguments: Sequence[Any]) -> str:
    from tvm.driver import build_module

    module = build_module.schedule_to_module(schedule, arguments, "main", None)
    return str(tvm.ir.save_json(module["main"]))


def _reason(error: BaseException) -> str:
    """Returns the last line of an error's text, which has TVM's reason."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    if type(error).__module__ == "builtins" or not text:
        text = f"{type(error).__name__}: {text}"
    return text[:_MAX_ERROR]


def _autotvm(tvm: Any, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Lowers configurations of one AutoTVM task.

    Request: `template`, `arguments`, `target`, `entities` (one per program) and, optionally,
    `with_source`. Responses: first `{"flop_count"}`, then for each program `{"tir"}`, with the CUDA
    `source` of the measured program if requested, or `{"error"}`; only `{"task_error"}` if the
    task cannot be created.
    """
    with_source = bool(request.get("with_source"))
    with _as_measured(tvm) if with_source else _for_features(tvm):
        yield from _autotvm_programs(tvm, request, with_source)


def _autotvm_programs(
    tvm: Any, request: dict[str, Any], with_source: bool
) -> Iterator[dict[str, Any]]:
    from tvm import autotvm
    from tvm.autotvm.task.space import ConfigEntity

    try:
        target = tvm.target.Target(request["target"])
        arguments = [_tuples(argument) for argument in request["arguments"]]
        task = autotvm.task.create(request["template"], arguments, target)
        flop_count = float(task.flop or 0.0)
    except Exception as error:
        yield {"task_error": _reason(error)}
        return
    yield {"flop_count": flop_count}
    for entity in request["entities"]:
        try:
            config = ConfigEntity.from_json_dict({"index": 0, "code_hash": None, "entity": entity})
            with target:
                schedule, tensors = task.instantiate(config)
                answer = {"tir": _lower(tvm, schedule, tensors)}
                if with_source:
                    answer["source"] = _cuda_source(tvm, schedule, tensors, target)
        except Exception as error:
            answer = {"error": _reason(error)}
        yield answer


def _cuda_source(tvm: Any, schedule: Any, arguments: Sequence[Any], target: Any) -> str:
    """Returns the CUDA source of a schedule's kernels without compiling it."""
    tvm.register_func("tvm_callback_cuda_compile", lambda *_: bytearray(b"-"), override=True)
    built = tvm.build(schedule, list(arguments), target=target, name="main")
    return "".join(str(one.get_source()) for one in built.imported_modules)


def _tuples(value: Any) -> Any:
    """Returns a JSON value with tuples instead of lists, the form of templates' arguments."""
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


def _ansor(tvm: Any, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Replays measure records of one task with the old TVM's Ansor.

    Request: `workload_key`, `dag` (JSON node graph of the tensors), `records` (lines). Responses:
    `{"tir"}` or `{"error"}` for each record; only `{"task_error"}` if the task cannot be read.
    """
    from tvm import auto_scheduler
    from tvm.auto_scheduler.measure import recover_measure_input
    from tvm.auto_scheduler.measure_record import load_record_from_string

    try:
        tensors = list(tvm.ir.load_json(request["dag"]))
        auto_scheduler.workload_registry.register_workload_tensors(request["workload_key"], tensors)
    except Exception as error:
        yield {"task_error": _reason(error)}
        return
    for record in request["records"]:
        try:
            read, _ = load_record_from_string(record)
            recovered = recover_measure_input(read, rebuild_state=True)
            dag = recovered.task.compute_dag
            yield {"tir": _lower(tvm, *dag.apply_steps_from_state(recovered.state))}
        except Exception as error:
            yield {"error": _reason(error)}


def _metaschedule(tvm: Any, request: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Replays traces of one MetaSchedule workload and lowers their blocks to plain loops.

    Request: `module` (JSON node graph), `traces` (instructions, decisions). Responses: first
    `{"blocks", "flop_count"}` of the unscheduled module, with `[name, axes of the last operand]`
    for each block (0 axes with fewer than two operands) and None if TVM cannot count FLOPs; then
    for each trace `{"tir"}` or `{"error"}`; only `{"task_error"}` if the module cannot be loaded.
    """
    try:
        module = tvm.ir.load_json(request["module"])
        blocks = _blocks(tvm, module)
    except Exception as error:
        yield {"task_error": _reason(error)}
        return
    yield {"blocks": blocks, "flop_count": _tir_flops(tvm, module)}
    transform = tvm.tir.transform
    lower = tvm.transform.Sequential(
        [
            transform.LowerCrossThreadReduction(),
            transform.LowerInitBlock(),
            transform.ConvertBlocksToOpaque(),
            transform.LowerMatchBuffer(),
            transform.LowerOpaqueBlock(),
        ]
    )
    for trace in request["traces"]:
        try:
            if any(step[0] == "Tensorize" for step in trace[0]):
                from tvm.tir import tensor_intrin  # noqa: F401  (registers the intrinsics)
            schedule = tvm.tir.Schedule(module, debug_mask="none", error_render_level="none")
            tvm.tir.schedule.Trace.apply_json_to_schedule(trace, schedule)
            yield {"tir": str(tvm.ir.save_json(lower(schedule.mod)["main"]))}
        except Exception as error:
            yield {"error": _reason(error)}


def _blocks(tvm: Any, module: Any) -> list[tuple[str, int]]:
    schedule = tvm.tir.Schedule(module, debug_mask="none", error_render_level="none")
    blocks = [
        schedule.get(handle) for handle in schedule.get_child_blocks(schedule.get_block("root"))
    ]
    return [
        (str(block.name_hint), len(block.reads[-1].region) if len(block.reads) > 1 else 0)
        for block in blocks
    ]


def _tir_flops(tvm: Any, module: Any) -> float | None:
    try:
        return float(tvm.tir.analysis.estimate_tir_flops(module))
    except Exception:  # TVM cannot count every expression
        return None


if __name__ == "__main__":
    serve()
