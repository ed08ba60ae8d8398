"""Tables printed by `analytic operator evaluate` and `analytic kernels evaluate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from cdmpp.analytic.gpu_kernels.calls import FAMILIES, LIBRARIES, SERVING, Family
from cdmpp.analytic.gpu_kernels.evaluate import (
    DEVELOPMENT_DEVICES,
    EvaluatedKernels,
    mean_over_seeds,
)
from cdmpp.analytic.operators.tables import PEERS, TABLES
from cdmpp.analytic.scores import Score
from cdmpp.report.page import Page, Section
from cdmpp.report.tables import plain_table
from cdmpp.text import counted

_MODELS = ("cdmpp", "cdmpp-isolated", *PEERS)
_OPERATOR_NOTES = (
    "Fitted only on single-operator measurements (A100 40 GB, P100, P4, T4, V100). No row of "
    "the tables is in the fit, and H100, L4 and A100 80 GB (`unseen`) have no measurement in "
    "the fit.",
    "`cdmpp` predicts an operator behind others, whose dispatch by the host is hidden; "
    "`cdmpp-isolated` a call of its own, as the fit's tables measured it.",
)
_KERNEL_NOTES = (
    "Left out: the fit has no row of the device; it uses the device's numbers in the registry "
    "and which software launched the kernels. `cdmpp, one factor`: the same times the best "
    "factor on the device, as the neighbour has it. `roofline`: the floor times one factor, "
    "`constant`: one time for all; both from the other devices.",
    "In the interval: share of the calls in the interval of 90 % that a device has which was not "
    "measured. The other devices were left out of a fit each: a sibling of one (b200, b300, gb300) "
    "has the interval of all their errors together, another device the widest of theirs, of its "
    "vendor's where there are others of it, and on both sides the farther end where all others are "
    "boards of one chip. The rule was made when this column of simpler ones was "
    "known.",
    "Neighbour: the same call on the device whose numbers are nearest, times the factor with "
    "the least error on the device itself, which is unknown without measurements there; only "
    "calls measured on both.",
    f"Settings were chosen by the errors of {', '.join(DEVELOPMENT_DEVICES)}, each left out in "
    "turn, seed 0. The errors on a100-sxm, b200, b300 and rtx-pro-6000 were computed once; what "
    "their data hold (peaks, floors, the neighbours' ratios) was looked at before.",
    "Larger shapes: of each device, fitted on the rows up to a quarter of the size (operations, "
    "bytes in decode and collectives) that 75 % of its rows have, evaluated on those above it: "
    "at least four times as large as any in the fit. New shapes: a fifth of the shapes held out.",
    "`gemm_tuned`: products of AMD's library, for each shape the fastest of all its kernels. "
    "The mi300x was measured only in fp8 blocks, and the fit without mi350x has no other type "
    "of them. `gemm_tile`: fp8 products of a library with one tile; the h800 is an h100 but for "
    "its links.",
    "`moe_tuned`: whole expert layers of AMD's library, best of tuned as its products. A layer "
    "is its hidden and inner size, experts and experts a token: all its rows, of whatever type "
    "and number of tokens, are left out together, a fifth of the layers at a time. `roofline`: "
    "the floor times one factor of the device's other layers; `its best factor`: fitted on the "
    "evaluated layers, so it is not available in practice. The interval is made of the errors "
    "of the device's other layers.",
    "Collectives between four or eight l40s reached 4 to 17 % of the GPU's links on their machine: "
    "they are evaluated, but no fit uses them.",
    "Prefill of b200 has a window in every row: SGLang's rows without one were timed as if with "
    "one (above 4,096 tokens they take 0.83 of the time of the same with a window of 128).",
)


_TWINS = ("b300", "gb300")
_SERVING_NOTES = (
    "Left out: the fit has no row of the device, or of the version of the software on any device. "
    "Fits that leave something out have 24,000 rows of each family, drawn at random. The kind of "
    "kernel (cutlass, triton and so on) of a row is an input, as its software and version are.",
    "Beside the goals: means over the devices or the versions, each counted once. Baselines: of "
    "devices with a twin (b300, gb300) the twin's time of the same call times the factor with "
    "the least error on the device itself; of others the roofline with one factor of the other "
    "devices; of versions the same call in the version before on the same device, times the "
    "factor with the least error on that device and version. `cdmpp` in the rows with a twin or "
    "a version before is over the calls that both measured. The factor is fitted to the "
    "evaluated rows; the column beside it has the same times without the factor.",
    "Measured times of the same call, or one of nearly its sizes, in another version or on a "
    "sibling of the device correct the trees: a version that is left out has the version "
    "before, a device its twin. Its settings were chosen on gb300 and on sglang 0.5.9 and "
    "0.5.10, trtllm 1.2.0rc5, 1.3.0rc10 and 1.3.0rc15, vllm 0.19.0 and 0.22.0, seed 0; the "
    "errors of the other parts were seen on the way. The inputs of latent_decode, "
    "latent_prefill and one_shot were selected by the errors on the devices without a twin that "
    "are evaluated here, those of sparse by the errors on h100 and l40s, seed 0.",
    "`one_shot` rows of machines on which large messages reach less than 0.3 of the GPU's links "
    "(four or eight l40s on one of two machines, two rtx-pro-6000 on one of two) are evaluated, "
    "but no fit uses them.",
    "In the interval: of a device as on the page of gpu-kernels (where all others are siblings of "
    "each other, from the fit without any of them); of a version the errors of the other versions, "
    "each left out of a fit of its own: quantiles with equal weight for each version, widened "
    "until they hold 90 % of a version that is left out.",
)


def operators_page(scores: Sequence[Score]) -> Page:
    """Returns the tables of the operator model."""
    found: dict[tuple[str, ...], Score] = {
        (one.split, one.device, one.group, one.model, one.seed.strip("-") or "all"): one
        for one in scores
    }

    def cell(*place: str, model: str = "cdmpp", seed: str = "all") -> str:
        return _cell(found, *place, model, seed)

    def devices(split: str) -> list[str]:
        names = {one.device for one in scores if one.split == split}
        return sorted(names - {"all", "seen", "unseen"})

    instances, whole, tests = map(devices, ("instances", "whole-models", "test-shapes"))
    seeds = sorted({one.seed for one in scores} - {"all", "-"}, key=int)
    by_group = []
    for family in TABLES:
        for device in ("all", "seen", "unseen"):
            place = ("instances", device, family)
            if (*place, "cdmpp", "all") in found:
                ours, theirs = (found[*place, name, "all"] for name in ("cdmpp", "neusight"))
                cells = [cell(*place, model=name) for name in _MODELS]
                ranks = f"{ours.rank:.3f}, {theirs.rank:.3f}"
                by_group.append([family, device, str(ours.n), *cells, ranks])
    by_device, by_seed, other_shapes = [], [], []
    for family in TABLES:
        places = [("instances", device, family) for device in instances]
        by_device.append([family, *(f"{cell(*p)} vs {cell(*p, model='neusight')}" for p in places)])
        by_seed.append([family, *(cell("instances", "all", family, seed=seed) for seed in seeds)])
        other_shapes.append([family])
        for device in ("all", *tests):
            one = found.get(("test-shapes", device, family, "cdmpp-isolated", "all"))
            other_shapes[-1].append(f"{_errors(one)} ({one.n})" if one else "-")
    in_whole = []
    for device in ("all", *whole):
        cells = [cell("whole-models", device, "all", model=name) for name in _MODELS]
        count = found["whole-models", device, "all", "cdmpp", "all"].n
        in_whole.append([device, str(count), *cells])
    tables = {
        "Instances in whole models, same rows for all": (
            ["operator", "devices", "n", *_MODELS, "Spearman: cdmpp, neusight"], by_group,
        ),
        "The same by device: cdmpp, then NeuSight": (["operator", *instances], by_device),
        "One fit, by seed": (["operator", *(f"seed {seed}" for seed in seeds)], by_seed),
        "Whole models (inference): sum of time x repeat over the traced operators": (
            ["devices", "n", *_MODELS], in_whole,
        ),
    }  # fmt: skip
    if tests:
        title = "Other shapes, isolated calls (cdmpp-isolated)"
        tables[title] = (["operator", "all", *tests], other_shapes)
    return Page(
        title="Operators",
        lead="Cells: mean / median absolute error, in percent.",
        sections=[Section(title, tables=[plain_table(*table)]) for title, table in tables.items()],
        notes=_OPERATOR_NOTES,
    )


def kernels_page(judged: EvaluatedKernels) -> Page:
    """Returns the tables of the kernel models."""
    means = mean_over_seeds(judged.scores)
    devices = {
        family: list(dict.fromkeys(
            place[2] for place in means if place[1] == family and "version" not in place[0]
        ))
        for family in (*FAMILIES, *LIBRARIES, *SERVING)
    }  # fmt: skip

    def cell(*place: str, group: str = "all", model: str = "cdmpp") -> str:
        return _cell(means, *place, group, model)

    left_out, beside, shapes = [], [], []
    for family, device in dict.fromkeys(
        place[1:3] for place in means if place[0] == "device-left-out"
    ):
        place = ("device-left-out", family, device)
        own = means[*place, "all", "cdmpp"]
        models = ("cdmpp", "cdmpp-one-factor", "roofline", "constant")
        cells = [cell(*place, model=name) for name in models]
        covered = f"{100 * (own.covered or 0):.0f}"
        left_out.append([family, device, str(own.n), *cells, covered])
        shared = ("shared-calls", family, device)
        if near := means.get((*shared, "all", "neighbour")):
            cells = [cell(*shared, model=name) for name in (*models[:2], "neighbour")]
            beside.append([family, device, str(near.n), *cells])
        cells = [cell(split, family, device) for split in ("new-shapes", "larger-shapes")]
        shapes.append([family, device, *cells])

    def by_type(family: Family) -> list[list[str]]:
        types = sorted({place[3] for place in means if place[1] == family} - {"all"})
        place = "device-left-out", family
        return [
            [name, *(cell(*place, device, group=name) for device in devices[family])]
            for name in types
        ]

    errors: dict[tuple[str, str], dict[str, float]] = {}
    for one in judged.scores:
        if (one.split, one.group, one.model) == ("device-left-out", "all", "cdmpp"):
            errors.setdefault((one.family, one.device), {})[one.seed] = one.mape
    seeds = sorted({seed for by_seed in errors.values() for seed in by_seed}, key=int)
    by_seed = [
        [*place, *(f"{100 * found[seed]:.1f}" for seed in seeds)] for place, found in errors.items()
    ]
    names = ["kernels", "device"]
    single = "cdmpp, one factor"
    tables = {
        "A device left out": (
            [*names, "n", "cdmpp", single, "roofline", "constant", "in the interval, %"], left_out,
        ),
        "A device left out, products by type": (["type", *devices["gemm"]], by_type("gemm")),
        "Beside the nearest device": (
            [*names, "n", "cdmpp", single, "neighbour, one factor"], beside,
        ),
        "New and larger shapes of known devices": (
            [*names, "new shapes", "larger shapes"], shapes,
        ),
        "A device left out, by seed: mean error": (
            [*names, *(f"seed {seed}" for seed in seeds)], by_seed,
        ),
    }  # fmt: skip
    tables = {title: table for title, table in tables.items() if table[1]}
    for family in SERVING:
        if rows := by_type(family):
            title = f"A device left out, {family} by type"
            tables[title] = (["type", *devices[family]], rows)
    if versions := _version_rows(means):
        head = ["kernels", "version", "n", "cdmpp", "in the interval, %", "n of both"]
        title = "A version of a framework left out"
        tables[title] = (
            [*head, "cdmpp", "version before, one factor", "version before"],
            versions,
        )
    more: dict[Family, str] = {
        "gemm_tuned": "AMD's tuned products by type",
        "moe_tuned": "AMD's tuned expert layers by type",
        "prefill": "prefill by window",
    }
    for family, what in more.items():
        if rows := by_type(family):
            tables[f"A device left out, {what}"] = (["type", *devices[family]], rows)
    if layers := _layer_rows(means):
        head = ["device", "type", "n", "cdmpp", "roofline", "its best factor", "in the interval, %"]
        tables["A fifth of the expert layers left out, AMD's tuned"] = (head, layers)
    points = _left_out_points(judged)
    is_serving = all(place[1] in SERVING for place in means)
    if is_serving:
        head = ["left out", "kernels", "goal, mean error", "cdmpp", "baseline"]
        head += ["without its factor", "in the interval, %"]
        tables = {"Beside the goals": (head, _goal_rows(means)), **tables}
    return Page(
        title="Kernels of LLM serving" if is_serving else "Kernels of today's GPUs",
        lead="Cells: mean / median absolute error in percent, mean over the seeds.",
        sections=[
            *(Section(title, tables=[plain_table(*table)]) for title, table in tables.items()),
            Section("Rows without evaluation", points=points),
        ],
        notes=_SERVING_NOTES if is_serving else _KERNEL_NOTES,
    )


def packaged_page(judged: EvaluatedKernels) -> Page:
    """Returns the table of a fitted kernel model on the measured rows of a folder."""
    found = mean_over_seeds(judged.scores)
    rows = []
    for family, device in dict.fromkeys(place[1:3] for place in found):
        place = ("packaged", family, device, "all")
        own = found[*place, "cdmpp"]
        cells = [_cell(found, *place, model) for model in ("cdmpp", "roofline", "constant")]
        rows.append([family, device, str(own.n), *cells, f"{100 * (own.covered or 0):.0f}"])
    head = ["kernels", "device", "n", "cdmpp", "roofline", "constant", "in the interval, %"]
    return Page(
        title="A fitted kernel model on measured kernels",
        lead="Cells: mean / median absolute error in percent. The baselines have the best factor "
        "on the device itself. Rows of the training data are included.",
        sections=[
            Section("Errors by device", tables=[plain_table(head, rows)]),
            Section("Rows without evaluation", points=_left_out_points(judged)),
        ],
    )


def _goal_rows(means: Mapping[tuple[str, ...], Score]) -> list[list[str]]:
    rows = []
    for family in dict.fromkeys(place[1] for place in means):
        devices = [
            place[2] for place in means
            if place[:2] == ("device-left-out", family) and place[3:] == ("all", "cdmpp")
        ]  # fmt: skip
        twins = [name for name in devices if name in _TWINS]
        others = [name for name in devices if name not in (*_TWINS, "b200")]
        versions = [
            place[2] for place in means
            if place[:2] == ("shared-versions", family) and place[4] == "cdmpp"
        ]  # fmt: skip
        kinds = (
            ("a device without a twin", "<= 25 %", "device-left-out", others, "roofline"),
            ("b300, gb300", "<= the twin's", "shared-calls", twins, "neighbour"),
            ("a version", "<= 10 %", "shared-versions", versions, "version-before"),
        )
        for what, goal, split, names, baseline in kinds:
            if not names:
                continue
            each = [
                [means.get((split, family, name, "all", model)) for name in names]
                for model in ("cdmpp", baseline, f"{baseline}-as-is")
            ]
            judged = "version-left-out" if split == "shared-versions" else "device-left-out"
            inside = [means[judged, family, name, "all", "cdmpp"].covered for name in names]
            known = [share for share in inside if share is not None]
            covered = f"{100 * sum(known) / len(known):.0f}" if known else "-"
            cells = [_mean_cell(own) for own in each]
            rows.append([what, family, goal, *cells, covered])
    return rows


def _mean_cell(scores: Sequence[Score | None]) -> str:
    known = [100 * one.mape for one in scores if one is not None]
    return f"{sum(known) / len(known):.1f}" if known else "-"


def _version_rows(means: Mapping[tuple[str, ...], Score]) -> list[list[str]]:
    rows = []
    for split, family, name, _, _ in means:
        if split != "version-left-out":
            continue
        own = means[split, family, name, "all", "cdmpp"]
        shared = ("shared-versions", family, name, "all")
        both = means.get((*shared, "version-before"))
        covered = "-" if own.covered is None else f"{100 * own.covered:.0f}"
        rows.append([
            family, name, str(own.n), _errors(own), covered, str(both.n) if both else "-",
            *(
                _cell(means, *shared, model)
                for model in ("cdmpp", "version-before", "version-before-as-is")
            ),
        ])  # fmt: skip
    return rows


def _layer_rows(means: Mapping[tuple[str, ...], Score]) -> list[list[str]]:
    rows = []
    for split, family, device, group, model in means:
        if (split, family, model) != ("new-shapes", "moe_tuned", "cdmpp"):
            continue
        place = split, family, device, group
        own = means[*place, model]
        models = ("cdmpp", "roofline", "roofline-best-factor")
        cells = [_cell(means, *place, name) for name in models]
        covered = "-" if own.covered is None else f"{100 * own.covered:.0f}"
        rows.append([device, group, str(own.n), *cells, covered])
    return rows


def _left_out_points(judged: EvaluatedKernels) -> list[str]:
    return [
        f"{family}: {counted(count, 'row')}, {why}"
        for family, reasons in judged.left_out.items()
        for why, count in reasons.items()
    ]


def _cell(scores: Mapping[tuple[str, ...], Score], *place: str) -> str:
    one = scores.get(place)
    return "-" if one is None else _errors(one)


def _errors(one: Score) -> str:
    return f"{100 * one.mape:.1f} / {100 * one.median_ape:.1f}"
