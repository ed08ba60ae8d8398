"""Texts about sources: their list, and the next command after a fetch."""

from __future__ import annotations

import shlex
import shutil
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cdmpp.datasets.fetch.registry import PublicSource
from cdmpp.datasets.fetched import Fetched, fetched_folder, read_fetched
from cdmpp.devices.registry import find_device
from cdmpp.devices.spec import DeviceSpec
from cdmpp.text import aligned


@dataclass(frozen=True)
class ListedSource:
    """A source and its local state.

    Attributes:
        folder: its folder; None = it is not fetched.
        bytes: size of the folder, or approximate size of the download; None = unknown.
    """

    source: PublicSource
    folder: Path | None
    bytes: int | None

    def to_json(self) -> dict[str, Any]:
        """Returns the source as JSON values."""
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


def listed(sources: Iterable[PublicSource], cache: Path) -> list[ListedSource]:
    """Returns every source with its state in the cache folder."""
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
    """Returns the list as lines of text: a table, then a description of each source."""
    table = [["name", "kind", "size", "fetched"]]
    table += [
        [row.source.name, row.source.kind, size_text(row.bytes), "yes" if row.folder else "no"]
        for row in rows
    ]
    lines = [aligned(table, "llrl")]
    for row in rows:
        source = row.source
        lines += ["", *_wrapped(f"{source.name}: {source.title}", indent="")]
        others = [label for label in source.devices if label not in source.default_for]
        for title, text in (
            ("devices", ", ".join(source.devices)),
            ("by name only", ", ".join(others)),
            ("records", source.programs),
            ("licence", source.licence),
            ("stored in", str(row.folder or "")),
        ):
            lines += _wrapped(f"{title}: {text}") if text else []
    if any(row.bytes is None for row in rows):
        lines += ["", "size ?: known after fetching"]
    return "\n".join(lines)


def _wrapped(text: str, *, indent: str = "  ") -> list[str]:
    width = max(40, shutil.get_terminal_size().columns)
    return textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=f"{indent}  ", break_on_hyphens=False
    )


def size_text(size: int | None) -> str:
    """Returns a size such as `3.4 MB`; `?` if it is unknown."""
    return "?" if size is None else f"{size / 1e6:,.1f} MB"


def next_command(source: PublicSource, fetched: Fetched, cache: Path, name: str) -> str:
    """Returns a sentence with the next command for the fetched records.

    Args:
        name: the requested name: a source or a device.
    """
    if source.kind == "other":
        return f"not directly readable; the files are in {fetched_folder(cache, source.name)}"
    spec = find_device(name)
    asked = [] if spec is None else [label for label in fetched.devices if _is(label, spec)]
    device = asked[0] if asked else fetched.devices[0]
    where = "" if cache == Path("cache") else f" --cache {shlex.quote(str(cache))}"
    side = (
        "; they are read with an old TVM, which is installed in a side environment if it is missing"
    )
    train = f"cdmpp train --device {device}{where}"
    return f"next: {train}{side if source.needs_legacy_env else ''}"


def _is(label: str, spec: DeviceSpec) -> bool:
    found = find_device(label)
    return found is not None and found.name == spec.name
