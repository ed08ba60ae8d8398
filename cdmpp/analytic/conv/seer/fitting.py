"""Fits a `SeerModel` to tables: one per kernel variant, and those of the FFT and helper kernels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from cdmpp.analytic.conv.algorithms import ConvAlgorithm, conv_variants, find_variant, variants_of
from cdmpp.analytic.conv.least_squares import LinearFit, relative_fit
from cdmpp.analytic.conv.seer.model import (
    SeerModel,
    choice_features,
    choice_key,
    device_residents,
    tiling_type_features,
)
from cdmpp.analytic.conv.seer.polynomials import (
    fit_fft,
    fit_fft_tiling,
    im2col_columns,
    transform_columns,
)
from cdmpp.analytic.conv.seer.regimes import TimeForm
from cdmpp.analytic.conv.seer.table import ConvTable
from cdmpp.analytic.conv.seer.trees import SmallTree, TreeOptions, fit_tree
from cdmpp.analytic.conv.seer.variant_model import fit_variant
from cdmpp.devices.spec import DeviceSpec
from cdmpp.errors import DataError

#: Suffix of the tables of helper kernels, e.g. `algo2_pre`, `algo7_128x64_3x3_pre`.
HELPER_SUFFIX = "_pre"
FFT_TABLES = ("algo4_16", "algo4_32", "algo4_64", "algo4_128", "algo4_256", "algo4")
FFT_TILING_TABLE = "algo5"
#: Rows of algo5 with counters, for its kernel type.
FFT_TILING_TYPE_TABLE = "algo5-ctree"


@dataclass(frozen=True)
class SeerOptions:
    """Options of a fit.

    Attributes:
        form: the original's three regimes or the smooth form.
        trees: options of every tree.
    """

    form: TimeForm = "original"
    trees: TreeOptions = field(default_factory=TreeOptions)


def table_names() -> tuple[str, ...]:
    """Returns every known table name."""
    nonfused = [v.name for v in variants_of(ConvAlgorithm.WINOGRAD_NONFUSED)]
    return (
        *(variant.name for variant in conv_variants()),
        "algo2" + HELPER_SUFFIX,
        *(name + HELPER_SUFFIX for name in nonfused),
        *FFT_TABLES,
        FFT_TILING_TABLE,
        FFT_TILING_TYPE_TABLE,
    )


def fit_seer(
    tables: Mapping[str, ConvTable], device: DeviceSpec, options: SeerOptions | None = None
) -> SeerModel:
    """Fits the model of a device.

    Args:
        tables: name as in the original's workbooks (`table_names`) -> training rows.
        device: gives the resident blocks where a table lacks them.

    Raises:
        DataError: no kernel variant and no FFT table, an unknown name, or a table without counters.
    """
    options = options or SeerOptions()
    unknown = sorted(set(tables) - set(table_names()))
    if unknown:
        raise DataError(f"unknown tables: {', '.join(unknown)}; known: {', '.join(table_names())}")
    names = [v.name for v in conv_variants() if v.name in tables]
    fft = [tables[name] for name in FFT_TABLES if name in tables]
    if not names and not fft and FFT_TILING_TABLE not in tables:
        raise DataError(
            f"got {len(tables)} tables, none of a main kernel; expected e.g. algo0_32x32.xlsx"
        )
    variants = {
        name: fit_variant(find_variant(name), tables[name], options.form, options.trees)
        for name in names
    }
    joined = ConvTable.concatenate(fft) if fft else None
    return SeerModel(
        device=device.name,
        resident=_residents(tables, names, device),
        variants=variants,
        choices=_choices(tables, names, options.trees),
        fft=None if joined is None else fit_fft(joined.shapes, joined.time_ms),
        fft_tiling=_tiling(tables),
        fft_tiling_type=_tiling_type(tables, options.trees),
        helpers=_helpers(tables),
    )


def _residents(
    tables: Mapping[str, ConvTable], names: list[str], device: DeviceSpec
) -> dict[str, int]:
    """Returns the measured resident blocks, or those by occupancy rules without measurements."""
    found: dict[str, int] = {}
    for name in names:
        measured = tables[name].resident
        measured = measured[np.isfinite(measured)]
        if len(measured):
            found[name] = int(np.median(measured))
    return {**found, **device_residents(device, [n for n in names if n not in found])}


def _choices(
    tables: Mapping[str, ConvTable], names: list[str], options: TreeOptions
) -> dict[str, SmallTree]:
    """Returns a tree for every algorithm (and filter width) with several fitted variants."""
    choices: dict[str, SmallTree] = {}
    for algorithm in ConvAlgorithm:
        if algorithm == ConvAlgorithm.IMPLICIT_PRECOMP_GEMM:
            continue
        members = variants_of(algorithm)
        groups: dict[str, list[int]] = {}
        for index, variant in enumerate(members):
            if variant.name in names:
                key = choice_key(algorithm, variant.kernels[0] if variant.kernels else 0)
                groups.setdefault(key, []).append(index)
        for key, indices in groups.items():
            if len(indices) < 2:
                continue
            parts = [tables[members[index].name] for index in indices]
            labels = np.concatenate(
                [np.full(len(part), index) for part, index in zip(parts, indices, strict=True)]
            )
            columns = choice_features(ConvTable.concatenate(parts).shapes)
            choices[key] = fit_tree(columns, labels, "classifier", options)
    return choices


def _tiling(tables: Mapping[str, ConvTable]) -> LinearFit | None:
    table = tables.get(FFT_TILING_TABLE)
    return None if table is None else fit_fft_tiling(table.shapes, table.time_ms)


def _tiling_type(tables: Mapping[str, ConvTable], options: TreeOptions) -> SmallTree | None:
    table = tables.get(FFT_TILING_TYPE_TABLE)
    if table is None:
        return None
    known = table[np.isfinite(table.fp32_level) & np.isfinite(table.dram_level)]
    if not len(known):
        raise DataError(
            f"{FFT_TILING_TYPE_TABLE}: no row has the use of both pipes; expected columns 17 and 18"
        )
    return fit_tree(tiling_type_features(known.shapes), known.kernel_type, "classifier", options)


def _helpers(tables: Mapping[str, ConvTable]) -> dict[str, LinearFit]:
    helpers = {}
    for name, table in tables.items():
        if not name.endswith(HELPER_SUFFIX):
            continue
        owner = name.removesuffix(HELPER_SUFFIX)
        made = im2col_columns if owner == "algo2" else transform_columns
        columns, names = made(table.shapes)
        helpers[owner] = relative_fit(columns, table.time_ms, names)
    return helpers
