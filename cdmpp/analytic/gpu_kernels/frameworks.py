"""Versions of serving frameworks in the data, and the kernels that they chose."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from cdmpp.arrays import FloatArray, TextArray
from cdmpp.devices.registry import get_device
from cdmpp.devices.spec import DeviceSpec, architecture_of
from cdmpp.errors import UsageError

_VERSION = re.compile(r"(\d+)\.(\d+)(?:\.(\d+))?(?:rc(\d+)|\.?post(\d+))?")
#: Release number of development builds: after all numbered versions.
_DEVELOPMENT = 1e6


def release_of(version: str) -> float:
    """Converts a version to a number that grows with it: `1.3.0rc20` -> 10299.2, `0.5.14` -> 514.

    Raises:
        UsageError: the text is not a version.
    """
    if ".dev" in version:
        return _DEVELOPMENT
    found = _VERSION.fullmatch(version)
    if found is None:
        raise UsageError(
            f"version {version!r} cannot be read; expected e.g. 0.24.0, 0.5.6.post2 or 1.3.0rc20"
        )
    major, minor, patch, candidate, post = (int(part or 0) for part in found.groups())
    release = 10_000.0 * major + 100.0 * minor + patch + 0.01 * post
    return release - 1.0 + 0.01 * candidate if candidate else release


def releases_of(versions: TextArray) -> FloatArray:
    """Returns float64 [N], `release_of` each version."""
    names, place = np.unique(versions, return_inverse=True)
    return np.array([release_of(str(name)) for name in names])[place]


@dataclass(frozen=True)
class Frameworks:
    """Versions and kernels of the frameworks in the rows of one family.

    Attributes:
        versions: software -> its versions, oldest first.
        kernels: `software type architecture`, or a prefix of these words -> the most frequent kind
            of kernel in the newest version; empty for families with one kind.
    """

    versions: Mapping[str, tuple[str, ...]]
    kernels: Mapping[str, str]

    @classmethod
    def of(
        cls,
        software: TextArray,
        version: TextArray,
        device: TextArray,
        columns: Mapping[str, NDArray[np.generic]],
    ) -> Frameworks:
        """Extracts versions and kernels from N rows, text [N] each."""
        versions = {
            str(name): tuple(sorted(map(str, np.unique(version[software == name])), key=release_of))
            for name in np.unique(software)
        }
        counts: dict[str, Counter[tuple[float, str]]] = {}
        if "kernel" in columns:
            words = type_words(columns, software)
            rows = zip(
                software, words, device, releases_of(version), columns["kernel"], strict=True
            )
            for (name, word, label, release, kernel), count in Counter(rows).items():
                for key in _keys(str(name), str(word), get_device(str(label))):
                    counts.setdefault(key, Counter())[release, str(kernel)] += count
        kernels = {}
        for key, found in counts.items():
            newest = max(release for release, _ in found)
            kernels[key] = max(
                (count, kernel) for (release, kernel), count in found.items() if release == newest
            )[1]
        return cls(versions, kernels)

    def release(self, software: str, version: str | None) -> float:
        """Returns the number of a version; None = the newest measured version of the software, or,
        if the software was not measured, of the software with the most versions.
        """
        if version is not None:
            return release_of(version)
        known = self.versions.get(software) or max(self.versions.values(), key=len)
        return release_of(known[-1])

    def version(self, software: str, release: float) -> str:
        """Returns the version with a release number; "" if it was not measured."""
        known = self.versions.get(software, ())
        return next((one for one in known if release_of(one) == release), "")

    def knows(self, software: str, version: str | None) -> bool:
        """Returns whether the version, or without one the software, was measured."""
        known = self.versions.get(software, ())
        return bool(known) and (version is None or version in known)

    def kernel(self, software: str, dtype: str, device: DeviceSpec) -> str:
        """Returns the kind of kernel that the software chooses by default."""
        keys = _keys(software, dtype, device)
        return next((self.kernels[key] for key in keys if key in self.kernels), "")


def type_words(columns: Mapping[str, NDArray[np.generic]], software: TextArray) -> TextArray:
    """Returns text [N], the type that determines the kernel; the software if calls have no type."""
    name = next((name for name in ("dtype", "kv_dtype") if name in columns), "")
    return np.asarray(columns[name] if name else software, np.str_)


def _keys(software: str, dtype: str, device: DeviceSpec) -> tuple[str, ...]:
    """Returns the keys of a choice, most specific first."""
    of_type = f"{software} {dtype}"
    architecture = " ".join(map(str, architecture_of(device) or ("unknown",)))
    return f"{of_type} {architecture}", of_type, software, ""
