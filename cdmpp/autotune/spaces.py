"""Search spaces of the kinds of models.

The spaces are not part of the option dataclasses in `cdmpp.models.options`: options are written
into every run folder, and their hash names runs; a wider range must not change either. A test
checks that every path exists and every value has the right type.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from cdmpp.autotune.settings import Group, Part, Setting, SettingCondition
from cdmpp.errors import UsageError
from cdmpp.programs.added_columns import EXTRA_BLOCKS
from cdmpp.text import nearest


def space_of(
    kind: str, *, groups: Sequence[Group] = (), exclude: Sequence[str] = ()
) -> tuple[Setting, ...]:
    """Returns the settings of a kind; a setting comes after the one in its condition.

    Args:
        groups: empty = all.
        exclude: prefixes of paths that are not searched, e.g. `transformer.network.members`.

    Raises:
        UsageError: the kind has no settings to search, or none is left.
    """
    if kind not in _SPACES:
        raise UsageError(
            f"nothing of the model {kind!r} has settings to tune; expected one of "
            f"{', '.join(sorted(_SPACES))}{nearest(kind, _SPACES)}"
        )
    prefix = kind.replace("-", "_")
    found = [
        setting
        for setting in _SPACES[kind](prefix)
        if (not groups or setting.group in groups)
        and not any(_is_within(setting.path, path) for path in exclude)
    ]
    if not found:
        raise UsageError(f"no setting of {kind} is left to tune; change groups and exclude")
    return tuple(found)


def _is_within(path: str, beginning: str) -> bool:
    return path == beginning or path.startswith(f"{beginning}.")


def _choice(
    path: str,
    group: Group,
    *choices: Any,
    when: SettingCondition | None = None,
    part: Part = "value",
) -> Setting:
    return Setting(path, group, choices=choices, when=when, part=part)


def _real(
    path: str, group: Group, low: float, high: float, *, is_log: bool = False, **more: Any
) -> Setting:
    return Setting(path, group, low=low, high=high, is_log=is_log, **more)


def _whole(
    path: str, group: Group, low: int, high: int, *, is_log: bool = False, **more: Any
) -> Setting:
    return Setting(path, group, low=low, high=high, is_log=is_log, is_whole=True, **more)


def _blocks(prefix: str) -> list[Setting]:
    return [
        _choice(f"{prefix}.extra_blocks.{block}", "leaf-blocks", True, False, part="block")
        for block in EXTRA_BLOCKS
    ]


def _loop(prefix: str, *, rates: tuple[float, float], batches: tuple[int, int]) -> list[Setting]:
    """Returns the optimiser, schedule, batch and regulariser settings of the training loop."""
    schedule = f"{prefix}.schedule"
    is_cosine = SettingCondition(schedule, ("cosine",))
    is_triangular = SettingCondition(schedule, ("triangular",))
    return [
        _choice(f"{prefix}.optimiser", "optimiser", "adamw", "adam"),
        _real(f"{prefix}.learning_rate", "optimiser", *rates, is_log=True),
        _real(f"{prefix}.gradient_clip", "optimiser", 0.25, 4.0, is_log=True),
        _choice(schedule, "schedule", "cosine", "triangular"),
        _real(f"{prefix}.warmup_fraction", "schedule", 0.0, 0.2, when=is_cosine),
        _whole(f"{prefix}.half_period", "schedule", 50, 4000, is_log=True, when=is_triangular),
        _whole(f"{prefix}.programs_per_batch", "batch", *batches, is_log=True),
        _choice(f"{prefix}.programs_per_task", "batch", 1, 2, 4, 8, 16),
        _real(f"{prefix}.weight_decay", "regulariser", 1e-6, 0.3, is_log=True),
        _choice(f"{prefix}.average_decay", "regulariser", 0.0, 0.98, 0.99, 0.995, 0.998),
    ]


def _transformer(prefix: str) -> list[Setting]:
    network, loss = f"{prefix}.network", f"{prefix}.loss"
    has_ratios = SettingCondition(f"{network}.ratios", (True,))
    aligns = SettingCondition(f"{loss}.alignment", ("cmd", "mmd"))
    return [
        _choice(f"{network}.hidden", "model", 32, 64, 96, 128),
        _whole(f"{network}.layers", "model", 1, 4),
        _choice(f"{network}.heads", "model", 2, 4, 8),
        _choice(f"{network}.feed_forward", "model", 64, 128, 192, 256, 384),
        _choice(f"{network}.head_hidden", "model", 32, 64, 96, 128),
        _whole(f"{network}.members", "model", 1, 3),
        _choice(f"{network}.position", "model", "sinusoidal", "original", "none"),
        _choice(f"{network}.ratios", "model", True, False),
        _choice(f"{network}.traffic", "model", True, False, when=has_ratios),
        _choice(f"{network}.anchor", "label", "leaf_roofline", "none"),
        _real(f"{network}.dropout", "regulariser", 0.0, 0.4),
        _real(f"{loss}.huber_delta", "loss", 0.05, 2.0, is_log=True),
        _real(f"{loss}.relative_weight", "loss", 0.0, 3.0),
        _real(f"{loss}.relative_clip", "loss", 1.0, 6.0),
        _real(f"{loss}.rank_weight", "loss", 0.0, 1.0),
        _choice(f"{loss}.alignment", "regulariser", "none", "cmd", "mmd"),
        _real(f"{loss}.alignment_weight", "regulariser", 0.01, 1.0, is_log=True, when=aligns),
        _choice(f"{loss}.alignment_groups", "regulariser", "device", "task", when=aligns),
        *_loop(f"{prefix}.loop", rates=(1e-4, 1e-2), batches=(16, 192)),
        *_blocks(prefix),
    ]


def _trees(prefix: str) -> list[Setting]:
    return [
        _choice(f"{prefix}.objective", "loss", "squared_log", "absolute_log", "huber_log"),
        _choice(f"{prefix}.least_mape_factor", "label", True, False),
        *_tree_shape(prefix),
    ]


def _tree_shape(prefix: str) -> list[Setting]:
    return [
        _whole(f"{prefix}.trees", "model", 100, 3000, is_log=True),
        _whole(f"{prefix}.depth", "model", 3, 12),
        _choice(f"{prefix}.total_columns", "model", True, False),
        _real(f"{prefix}.learning_rate", "optimiser", 0.01, 0.3, is_log=True),
        _real(f"{prefix}.subsample", "regulariser", 0.4, 1.0),
        _real(f"{prefix}.column_share", "regulariser", 0.1, 1.0),
        _real(f"{prefix}.min_child_weight", "regulariser", 0.5, 30.0, is_log=True),
        *_blocks(prefix),
    ]


def _least_mape_factor(prefix: str) -> Setting:
    is_mse = SettingCondition(f"{prefix}.loss", ("mse",))
    return _choice(f"{prefix}.least_mape_factor", "label", True, False, when=is_mse)


def _segment_mlp(prefix: str) -> list[Setting]:
    return [
        _choice(f"{prefix}.hidden", "model", 64, 128, 192, 256, 384, 512),
        _choice(f"{prefix}.loss", "loss", "mse", "lambda_rank"),
        _least_mape_factor(prefix),
        *_loop(f"{prefix}.loop", rates=(1e-4, 1e-2), batches=(16, 256)),
        *_blocks(prefix),
    ]


def _tlp(prefix: str) -> list[Setting]:
    # It reads schedule steps instead of leaves, so it has no leaf blocks.
    return [
        _choice(f"{prefix}.hidden", "model", 32, 64, 128, 256),
        _choice(f"{prefix}.heads", "model", 2, 4, 8),
        _choice(f"{prefix}.least_mape_factor", "label", True, False),
        *_loop(f"{prefix}.loop", rates=(1e-4, 1e-2), batches=(16, 256)),
    ]


def _tlp_rank(prefix: str) -> list[Setting]:
    return [setting for setting in _tlp(prefix) if setting.group != "label"]


def _recursive_lstm(prefix: str) -> list[Setting]:
    widths = ((600, 350, 200, 180), (256, 128), (128, 64), (64, 64))
    return [
        _choice(f"{prefix}.embed", "model", *widths),
        _choice(f"{prefix}.collapse_chains", "model", True, False),
        _choice(f"{prefix}.loss", "loss", "mse", "lambda_rank"),
        _least_mape_factor(prefix),
        _real(f"{prefix}.dropout", "regulariser", 0.0, 0.4),
        *_loop(f"{prefix}.loop", rates=(1e-4, 1e-2), batches=(16, 256)),
        *_blocks(prefix),
    ]


def _cdmpp_paper(prefix: str) -> list[Setting]:
    """Returns the space of the original tuner, as far as our model has the options: without SGD and
    the one_cycle and exponential schedules.
    """
    stacks = [
        setting
        for name in ("embedded_layers", "regression_layers")
        for setting in (
            _choice(f"{prefix}.{name}.count", "model", 1, 3, 5, 7, 9, part="count"),
            _whole(f"{prefix}.{name}.width", "model", 64, 1024, is_log=True, part="width"),
        )
    ]
    return [
        _whole(f"{prefix}.layers", "model", 1, 12),
        _whole(f"{prefix}.feed_forward", "model", 128, 2048, is_log=True),
        _whole(f"{prefix}.input_layer", "model", 164, 1024, is_log=True),
        _whole(f"{prefix}.latent", "model", 64, 1024, is_log=True),
        *stacks,
        _real(f"{prefix}.mse_weight", "loss", 1e-3, 1e4, is_log=True),
        _real(f"{prefix}.dropout", "regulariser", 0.0, 0.4),
        *_loop(f"{prefix}.loop", rates=(1e-6, 1e-2), batches=(4, 600)),
        *_blocks(prefix),
    ]


def _ensemble(prefix: str) -> list[Setting]:
    return [
        *_transformer(f"{prefix}.transformer"),
        *(
            setting
            for setting in _segment_mlp(f"{prefix}.perceptron")
            # The ensemble averages its output in seconds, and scales the average once.
            if setting.group not in ("loss", "label")
        ),
        _choice(f"{prefix}.trees.objective", "loss", "squared_log", "absolute_log", "huber_log"),
        *_tree_shape(f"{prefix}.trees"),
    ]


_SPACES: Mapping[str, Callable[[str], list[Setting]]] = {
    "cdmpp-paper": _cdmpp_paper,
    "ensemble": _ensemble,
    "gbdt": _trees,
    "gbdt-rank": _tree_shape,
    "recursive-lstm": _recursive_lstm,
    "segment-mlp": _segment_mlp,
    "tlp": _tlp,
    "tlp-rank": _tlp_rank,
    "transformer": _transformer,
}
