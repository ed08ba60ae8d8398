"""Graphs of timm's architectures, traced at two batch sizes and stored as a data set."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
import pyarrow.parquet as parquet

from cdmpp.errors import CdmppError, DataError, UsageError, first_line
from cdmpp.files.atomic import make_folder, write_atomic
from cdmpp.files.journal import LineJournal
from cdmpp.files.places import shipped_places
from cdmpp.networks.dataset.graph_table import graphs_from_table, table_of_graphs
from cdmpp.networks.dataset.rows import GraphRow
from cdmpp.networks.dataset.store import MANIFEST, check_replaced, read_dataset, write_dataset
from cdmpp.networks.graph.graph import NetworkGraph
from cdmpp.networks.graph.torch_graph import torch_graph

#: Two batch sizes determine how every number grows; a batch of 1 could be mistaken for a unit axis.
_BATCHES = (2, 3)
_SHIPPED = Path("data/timm-graphs")
_PIECES, _FAILED = "traced", "untraced.jsonl"
_CHANNELS = 3
#: Key in the data set's note: "architecture@size" -> ids of its two graphs.
_PAIRS = "pairs"
#: (architecture, image size) -> module.
MakeNetwork = Callable[[str, int], Any]
#: (architectures done, number of architectures, the last architecture) -> None.
OnTraced = Callable[[int, int, str], None]


@dataclass(frozen=True)
class ArchitectureGraphs:
    """Traced architectures.

    Attributes:
        pairs: (architecture, image size) -> its graphs at two batch sizes.
    """

    pairs: Mapping[tuple[str, int], tuple[NetworkGraph, NetworkGraph]]

    def __contains__(self, key: tuple[str, int]) -> bool:
        return key in self.pairs

    def graph(self, arch: str, size: int, batch: int) -> NetworkGraph:
        """Returns the graph of an architecture at a batch size.

        Raises:
            KeyError: the architecture was not traced at this image size.
        """
        return at_batch(*self.pairs[arch, size], batch)


def read_graphs(folder: Path | None = None) -> ArchitectureGraphs:
    """Returns the graphs of a folder; None = the shipped graphs of timm's networks.

    Raises:
        DataError: the data set is missing, or has no networks traced at two batch sizes.
    """
    if folder is None:
        places = shipped_places(_SHIPPED)
        folder = next((place for place in places if (place / MANIFEST).is_file()), places[0])
    data = read_dataset(folder)
    by_id = {row.graph.graph_id: row.graph for row in data.graphs}
    whole = {
        (name.rpartition("@")[0], int(name.rpartition("@")[2])): (by_id[first], by_id[second])
        for name, (first, second) in data.manifest["note"].get(_PAIRS, {}).items()
    }
    if not whole:
        raise DataError(
            f"{folder}: no architecture at two batch sizes; expected the output of `cdmpp "
            "networks convert TABLE`"
        )
    return ArchitectureGraphs(whole)


def trace_architectures(
    wanted: Sequence[tuple[str, int]],
    out: Path,
    *,
    make: MakeNetwork | None = None,
    source: str = "",
    on_progress: OnTraced | None = None,
) -> dict[str, str]:
    """Traces architectures and writes them as a data set; resumes an interrupted call.

    Args:
        wanted: (architecture, image size in pixels).
        out: folder of the data set.
        make: creates a module; None = timm's `create_model`.
        source: origin of the modules, stored in the rows.

    Returns:
        "architecture@size" -> reason why it could not be traced.

    Raises:
        UsageError: timm is needed and not installed, or `out` has measurements.
        DataError: no architecture could be traced, or the folder cannot be written.
    """
    check_replaced(out, {})
    if make is None:
        make, source = timm_maker()
    pieces = make_folder(out / _PIECES, what="traced architectures")
    journal = LineJournal(out / _FAILED)
    try:
        failed = {str(entry["network"]): str(entry["reason"]) for entry in journal.entries}
        for done, (arch, size) in enumerate(wanted):
            name, path = f"{arch}@{size}", pieces / f"{quote(arch, safe='')}-{size}.parquet"
            if not path.is_file() and name not in failed:
                try:
                    _trace(arch, size, path, make, source)
                except CdmppError as error:
                    failed[name] = first_line(error)
                    journal.append({"network": name, "reason": failed[name]})
            if on_progress is not None:
                on_progress(done + 1, len(wanted), name)
    finally:
        journal.close()
    if all(f"{arch}@{size}" in failed for arch, size in wanted):
        raise DataError(f"no architecture could be traced: {next(iter(failed.values()), '')}")
    pairs: dict[str, list[str]] = {}  # equal graphs are stored once
    for row in _pieces(pieces):
        name = f"{row.architecture}@{row.resolution}"
        pairs.setdefault(name, []).append(row.graph.graph_id)
    note = {"source": source, "untraced": failed, _PAIRS: pairs}
    write_dataset(out, _pieces(pieces), (), note=note)
    shutil.rmtree(pieces)
    (out / _FAILED).unlink()
    return failed


def _trace(arch: str, size: int, path: Path, make: MakeNetwork, source: str) -> None:
    shape = (_CHANNELS, size, size)
    rows = [
        GraphRow(
            torch_graph(
                lambda: make(arch, size), [shape], batch=batch, name=arch, in_both_layouts=True
            ),
            arch, source, resolution=size,
        )
        for batch in _BATCHES
    ]  # fmt: skip
    at_batch(rows[0].graph, rows[1].graph, 1)  # raises if the traces do not fit together
    table = table_of_graphs(rows, [row.graph.graph_id for row in rows])
    write_atomic(path, lambda place: parquet.write_table(table, place))


def _pieces(folder: Path) -> Iterator[GraphRow]:
    for path in sorted(folder.glob("*.parquet")):
        for row in graphs_from_table(parquet.read_table(path)):
            yield GraphRow(**row)


def timm_maker() -> tuple[MakeNetwork, str]:
    """Returns a function that creates timm's networks, and timm's name and version.

    Raises:
        UsageError: timm cannot be imported.
    """
    try:
        import timm  # type: ignore[import-not-found]
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision of another torch
        raise UsageError(
            f"timm cannot be imported ({first_line(error)}); install timm and the torchvision of "
            "this torch: pip install timm"
        ) from None

    def make(arch: str, size: int) -> Any:
        try:
            return timm.create_model(arch, img_size=size)
        except TypeError:  # a network of any size
            return timm.create_model(arch)

    return make, f"timm {timm.__version__}"


def at_batch(first: NetworkGraph, second: NetworkGraph, batch: int) -> NetworkGraph:
    """Returns the graph at a batch size by linear extrapolation of two traces; without accounts.

    Raises:
        DataError: the traces have the same batch size, or different operators or edges.
    """
    if first.batch == second.batch or first.kinds != second.kinds:
        raise DataError(
            f"{first.name}: two traces of batch {first.batch} and {second.batch} with "
            f"{len(first.kinds)} and {len(second.kinds)} operators, expected two batch sizes and "
            "the same operators"
        )
    if not np.array_equal(first.edges, second.edges):
        raise DataError(f"{first.name}: its operators are connected differently at another batch")
    share = (batch - first.batch) / (second.batch - first.batch)
    memory = first.memory + share * (second.memory - first.memory)
    flops = first.flops + share * (second.flops - first.flops)
    copies = first.copies + share * (second.copies - first.copies)
    return replace(first, batch=batch, memory=memory, flops=flops, copies=copies, accounts=())
