"""TVM's tuning functions with `cost_model="cdmpp"`, and the start-up fixes that they need."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import UsageError
from cdmpp.predict.estimates import TrainedModel
from tvm_helper.compat import (
    Target,
    import_tensor_intrinsics,
    meta_schedule,
    stub_tensor_intrinsics,
)
from tvm_helper.cost_model.metaschedule import CdmppCostModel

#: `cdmpp`, and the names of TVM's own models.
CostModelName = Literal["cdmpp", "xgb", "mlp", "random"]
_TVM_NAMES = ("xgb", "mlp", "random")
_BUILD_TIMEOUT_S = 60.0
_TVM_LOGGER = "tvm.s_tir.meta_schedule"


def resolve_cost_model(
    cost_model: CostModelName | Any,
    *,
    model: TrainedModel | Path | str | None = None,
    device: DeviceSpec | str | None = None,
    finetune_every: int = 0,
    neighbours: bool = True,
    safety_net: bool = True,
    seed: int = 0,
) -> Any:
    """Returns a cost model object for TVM.

    Args:
        cost_model: a name, or an object, which is returned unchanged.
        model: with `cdmpp`: run folder, `pretrained` (the default), or a loaded model.
        device: with `cdmpp`: the measured device.
        finetune_every, neighbours, safety_net, seed: with `cdmpp`: see `CdmppCostModel`.

    Raises:
        UsageError: an unknown name, or `cdmpp` without a device.
    """
    if not isinstance(cost_model, str):
        return cost_model
    if cost_model in _TVM_NAMES:
        return meta_schedule.cost_model.CostModel.create(cost_model)
    if cost_model != "cdmpp":
        raise UsageError(
            f"unknown cost model {cost_model!r}; expected cdmpp, {', '.join(_TVM_NAMES)} or an "
            "object"
        )
    if device is None:
        raise UsageError(
            'cost_model="cdmpp" needs the measured device: give device=LABEL, a label of '
            "`cdmpp device list`"
        )
    return CdmppCostModel(
        "pretrained" if model is None else model, device, finetune_every=finetune_every,
        neighbours=neighbours, safety_net=safety_net, seed=seed,
    )  # fmt: skip


def tune_tir(
    module: Any,
    target: Any,
    work_dir: Path | str,
    max_trials_global: int,
    *,
    cost_model: CostModelName | Any = "cdmpp",
    model: TrainedModel | Path | str | None = None,
    device: DeviceSpec | str | None = None,
    cost_model_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Runs `meta_schedule.tune_tir`; returns its database.

    Args:
        cost_model: see `resolve_cost_model`; `model`, `device` and `cost_model_options` are its
            options.
        options: all other options of TVM. Without `builder`, the builder's workers start without
            TVM's tensor intrinsics, whose import takes longer than TVM's time limit of a build.

    Raises:
        UsageError: see `resolve_cost_model`.
    """
    return _tune(
        meta_schedule.tune_tir, (module, target, str(work_dir), max_trials_global), cost_model,
        model, device, cost_model_options, options, target,
    )  # fmt: skip


def tune_relax(
    module: Any,
    params: Mapping[str, Any],
    target: Any,
    work_dir: Path | str,
    max_trials_global: int,
    *,
    cost_model: CostModelName | Any = "cdmpp",
    model: TrainedModel | Path | str | None = None,
    device: DeviceSpec | str | None = None,
    cost_model_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> Any:
    """Runs `meta_schedule.relax_integration.tune_relax`; returns its database.

    Args:
        module: fused network of `tvm_helper.tasks.network_tasks.fused_network`; TVM finds no
            tasks in other modules.
        cost_model, options: see `tune_tir`.

    Raises:
        UsageError: see `resolve_cost_model`.
    """
    return _tune(
        meta_schedule.relax_integration.tune_relax,
        (module, dict(params), target, str(work_dir), max_trials_global), cost_model,
        model, device, cost_model_options, options, target,
    )  # fmt: skip


def local_builder(*, workers: int = 1) -> Any:
    """Returns a builder whose worker processes start within TVM's time limit."""
    return meta_schedule.builder.LocalBuilder(
        max_workers=workers, timeout_sec=_BUILD_TIMEOUT_S, initializer=stub_tensor_intrinsics
    )


def _tune(
    function: Callable[..., Any],
    positional: tuple[Any, ...],
    cost_model: CostModelName | Any,
    model: TrainedModel | Path | str | None,
    device: DeviceSpec | str | None,
    cost_model_options: Mapping[str, Any] | None,
    options: dict[str, Any],
    target: Any,
) -> Any:
    chosen = resolve_cost_model(
        cost_model, model=model, device=device, **dict(cost_model_options or {})
    )
    compiled_for = target if isinstance(target, Target) else Target(target)
    if isinstance(chosen, CdmppCostModel):
        # Checked here because TVM turns errors in its calls into a RuntimeError.
        chosen.check_target(compiled_for)
    import_tensor_intrinsics(compiled_for.kind.name)  # before TVM imports them slowly
    _drop_unnamed_handlers()
    if "builder" not in options:
        options["builder"] = local_builder()
    return function(*positional, cost_model=chosen, **options)


def _drop_unnamed_handlers() -> None:
    """Removes handlers without a name from TVM's logger: TVM's logging set-up fails on them."""
    logger = logging.getLogger(_TVM_LOGGER)
    for handler in [handler for handler in logger.handlers if handler.get_name() is None]:
        logger.removeHandler(handler)
