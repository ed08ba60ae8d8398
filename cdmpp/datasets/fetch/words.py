"""What is said of sources: the list of them, and what to do with what was fetched."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.datasets.fetch.registry import RecordSource
from cdmpp.datasets.fetched import fetched_folder, read_fetched
from cdmpp.devices.registry import find_device
from cdmpp.text import aligned


@dataclass(frozen=True)
class ListedSource:
    """A source and whether it is there.

    Attributes:
        folder: where it lies; None = it is not fetched.
        bytes: its size there, or about that of its download; None = not known.
    """

    source: RecordSource
    folder: Path | None
    bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Returns it as JSON values."""
        source = self.source
        return {
            "name": source.name,
            "title": source.title,
            "kind": source.kind,
            "devices": list(source.devices),
            "default_for": list(source.default_for),
            "programs": source.programs or None,
            "bytes": self.bytes,
            "licence": source.licence,
            "citation": source.citation,
            "homepage": source.homepage,
            "commit": source.commit,
            "urls": [item.url for item in source.downloads],
            "has_checksums": source.has_checksums,
            "folder": None if self.folder is None else str(self.folder),
        }


def listed(sources: Iterable[RecordSource], cache: Path) -> list[ListedSource]:
    """Returns every source with what the cache folder has of it."""
    rows = []
    for source in sources:
        folder = fetched_folder(cache, source.name)
        fetched = read_fetched(folder)
        if fetched is None:
            rows.append(ListedSource(source, None, source.about_bytes))
        else:
            rows.append(ListedSource(source, folder, fetched.bytes))
    return rows


def sources_text(rows: Sequence[ListedSource]) -> str:
    """Returns the list as lines of text: a table, then what each source is."""
    table = [["name", "kind", "size", "fetched"]]
    table += [
        [row.source.name, row.source.kind, size_text(row.bytes), "yes" if row.folder else "no"]
        for row in rows
    ]
    lines = [aligned(table, "llrl"), ""]
    for row in rows:
        source = row.source
        lines += [f"{source.name}: {source.title}"]
        lines += [f"  devices: {', '.join(source.devices)}"]
        lines += [f"  records: {source.programs}"] if source.programs else []
        lines += [f"  licence: {source.licence}"]
    return "\n".join(lines)


def size_text(size: int | None) -> str:
    """Returns e.g. `3.4 MB`; `?` where it is not known."""
    return "?" if size is None else f"{size / 1e6:,.1f} MB"


def next_command(source: RecordSource, folder: Path, name: str = "") -> str:
    """Returns the sentence that says how the fetched records are used.

    Args:
        name: what was asked for; a device's label where that is one of the source's devices.
    """
    spec = find_device(name) if name else None
    labels = {found.name for label in source.devices if (found := find_device(label)) is not None}
    device = name if spec is not None and spec.name in labels else source.devices[0]
    if source.kind == "other":
        return f"no reader of cdmpp takes these records as they are; they are in {folder}"
    train = f"python scripts/train.py --device {device}"
    if source.kind == "tenset":
        return f"next: {train} --dataset {folder}"
    out = folder.parent.parent / source.name
    extract = f"cdmpp dataset extract --dataset {folder} --device {device} --out {out}"
    first = "make legacy-env (once), then: " if source.kind == "autotvm" else ""
    return f"next: {first}{extract}, then: {train} --dataset {out}"
