"""Corrects the trees of a family by measured neighbours of a call: the same kernel at other sizes,
in another version, or on a sibling of the GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cdmpp.analytic.gpu_kernels.account.chip import chip_of
from cdmpp.analytic.gpu_kernels.account.work import Columns
from cdmpp.analytic.gpu_kernels.unseen import are_siblings, octaves_between
from cdmpp.arrays import FloatArray, TextArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.files.atomic import write_columns

#: Neighbours of a call, and the distance (octaves) over which their weight falls by e.
_COUNT, _SHARE = 4, 0.3
#: Distance at which a correction counts by 1/e, in octaves of a size.
_REACH = 4.0
#: Distance in octaves of size of an earlier version, a later version, and an octave of a GPU's
#: numbers.
_VERSION, _LATER, _DEVICE = 0.5, 1.0, 0.5
#: Share that counts of how much slower than the trees a call was in versions before an unmeasured
#: one, as new versions speed up what was slow; minimum measurements of such a kind of call.
_SLOWER, _LEAST_ROWS = 0.5, 100
#: Resolution of log(measured / nominal) in the file.
_STEP = 0.005


@dataclass(frozen=True)
class NearRows:
    """Measured calls of one family.

    Attributes:
        sizes: numeric field of the call, and `release` -> [N].
        words: software and text fields of calls -> their rows (int [n]).
        labels: labels of devices.
        device: int [N], index into `labels`.
        effort: float32 [N], log(measured / nominal time).
    """

    sizes: Columns
    words: Mapping[str, NDArray[np.intp]]
    labels: tuple[str, ...]
    device: NDArray[np.integer[Any]]
    effort: NDArray[np.float32]
    _trees: dict[Any, Any] = field(default_factory=dict, compare=False, repr=False)

    @classmethod
    def of(
        cls, columns: Columns, software: TextArray, device: TextArray, effort: FloatArray
    ) -> NearRows:
        """Stores N measured calls; text [N], text [N] and float64 [N]."""
        labels, place = np.unique(device, return_inverse=True)
        words = dict(zip(*_places_of(_words(columns, software)), strict=True))
        return cls(
            {name: column for name, column in columns.items() if column.dtype.kind != "U"},
            words,
            tuple(map(str, labels)),
            place.astype(np.int8),
            np.asarray(effort, np.float32),
        )

    def save(self, path: Path) -> None:
        """Writes a Parquet file.

        Raises:
            DataError: the file cannot be written.
        """
        words = np.empty(len(self.device), object)
        for name, rows in self.words.items():
            words[rows] = name
        effort = np.round(self.effort / _STEP).astype(np.int16)
        device = np.array(self.labels)[self.device]
        order = np.lexsort([effort, device, *self.sizes.values(), words.astype(np.str_)])
        columns = {"words": words, "device": device, "effort": effort, **self.sizes}
        write_columns(path, {name: one[order] for name, one in columns.items()}, packed=True)

    @classmethod
    def load(cls, path: Path) -> NearRows:
        """Reads the rows of a file.

        Raises:
            OSError, ValueError, KeyError: the file cannot be read.
        """
        import pyarrow.parquet as parquet

        table = parquet.read_table(path, read_dictionary=["words", "device"]).combine_chunks()
        coded = {
            name: (column.chunk(0).dictionary.to_pylist(), column.chunk(0).indices.to_numpy())
            for name, column in ((name, table.column(name)) for name in ("words", "device"))
        }
        names = [name for name in table.column_names if name not in (*coded, "effort")]
        words, kind = coded["words"]
        labels, device = coded["device"]
        return cls(
            {name: table.column(name).to_numpy() for name in names},
            dict(zip(words, _rows_of(kind), strict=True)),
            tuple(labels),
            device,
            table.column("effort").to_numpy() * np.float32(_STEP),
        )

    def releases(self, columns: Columns, software: TextArray) -> list[FloatArray]:
        """Returns for each of N calls the releases in which its kind was measured, in ascending
        order.
        """
        words = _words(columns, software).tolist()
        known = {}
        for one in set(words):
            rows = self.words.get(one, np.empty(0, np.intp))
            known[one] = np.unique(self.sizes["release"][rows].astype(np.float64))
        return [known[one] for one in words]

    def correction(
        self,
        family: str,
        columns: Columns,
        software: TextArray,
        device: DeviceSpec,
        effort_of: Callable[[Columns, TextArray], FloatArray],
    ) -> FloatArray:
        """Returns float64 [N], the correction of the trees' log(time / nominal time) of calls on a
        GPU by their nearest measurements; 0 without any.

        Args:
            columns, software: fields and software of the calls.
            effort_of: predicts the trees' log(time / nominal time) of calls on this GPU.
        """
        found = np.zeros(len(software))
        release = columns["release"].astype(np.float64)
        words = np.char.add(np.char.add(_words(columns, software), "@"), release.astype(np.str_))
        for name, kind in zip(*_places_of(words), strict=True):
            known = self._near(name.partition("@")[0], float(release[kind[0]]), device, family)
            if known is None:
                continue
            near, tree, is_new = known
            distance, which = tree.query(
                _octaves(columns, kind, np.zeros(len(kind))), k=_COUNT, p=1
            )
            which = near[np.minimum(which, len(near) - 1)]
            share = np.exp((distance[:, :1] - distance) / _SHARE)
            share /= share.sum(axis=1, keepdims=True)
            asked = np.repeat(kind, _COUNT)
            there = {
                one: self.sizes.get(one, column)[which.ravel() if one in self.sizes else asked]
                for one, column in columns.items()
            }
            there["release"] = columns["release"][asked]
            left = self.effort[which] - effort_of(there, software[asked]).reshape(which.shape)
            if is_new:
                is_before = self.sizes["release"][which] < release[kind[0]]
                left = np.where(is_before & (left > 0.0), _SLOWER * left, left)
            found[kind] = np.sum(share * left * np.exp(-distance / _REACH), axis=1)
        return found

    def _near(self, words: str, release: float, device: DeviceSpec, family: str) -> Any:
        """Returns the rows of a kind of calls on a GPU and its siblings, a tree of their
        coordinates relative to a release, and whether only other releases were measured, and often
        enough for the trees; None without rows.
        """
        from scipy.spatial import cKDTree

        asked = words, release, family, device.name, chip_of(device)
        if asked not in self._trees:
            away = np.array([_between(device, label, family) for label in self.labels])
            rows = self.words.get(words, np.empty(0, np.intp))
            measured = np.unique(self.sizes["release"][rows])
            is_new = len(measured) > 1 and release not in measured and len(rows) >= _LEAST_ROWS
            rows = rows[np.isfinite(away[self.device[rows]])]
            own = away[self.device[rows]] + _versions(self.sizes["release"][rows], release)
            place = cKDTree(_octaves(self.sizes, rows, own)) if len(rows) else None
            self._trees[asked] = (rows, place, is_new) if len(rows) else None
        return self._trees[asked]


def _versions(releases: FloatArray, release: float) -> FloatArray:
    """Returns float64 [N], the distances of versions in octaves; later ones are farther."""
    known = np.unique(releases)
    before = np.searchsorted(known, release) - np.searchsorted(known, releases)
    after = np.searchsorted(known, releases, "right") - np.searchsorted(known, release, "right")
    return np.where(releases <= release, _VERSION * before, _LATER * after)


def _between(device: DeviceSpec, label: str, family: str) -> float:
    """Returns the distance of a measured GPU, in octaves of size; inf if it is not a sibling."""
    if label == device.name:
        return 0.0
    other = get_device(label)
    is_near = are_siblings(device, other, family)
    return 0.01 + _DEVICE * octaves_between(device, other) if is_near else float("inf")


def _octaves(columns: Columns, rows: NDArray[np.intp], away: FloatArray) -> FloatArray:
    """Returns float64 [R, sizes + 1], coordinates for the L1 distance."""
    own = {name: column[rows] for name, column in columns.items() if column.dtype.kind != "U"}
    own.pop("release")
    return np.stack([*(np.log2(np.maximum(one, 0.5)) for one in own.values()), away], axis=1)


def _words(columns: Columns, software: TextArray) -> TextArray:
    """Returns text [N], the words that two calls must share to be neighbours."""
    found = software
    for column in columns.values():
        if column.dtype.kind == "U":
            found = np.char.add(np.char.add(found, " "), column.astype(np.str_))
    return found


def _places_of(words: TextArray) -> tuple[list[str], list[NDArray[np.intp]]]:
    """Returns the different words of N rows, and the rows of each."""
    names, kind = np.unique(words, return_inverse=True)
    return list(map(str, names)), _rows_of(kind)


def _rows_of(kind: NDArray[np.integer[Any]]) -> list[NDArray[np.intp]]:
    """Returns the rows of each number, from 0."""
    order = np.argsort(kind, kind="stable")
    return np.split(order, np.cumsum(np.bincount(kind))[:-1])
