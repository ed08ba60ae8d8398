"""Where files lie that come with the package, and those of a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def package_folder(package: str) -> Path:
    """Returns the folder of an importable package, by its dotted name (`cdmpp.devices`)."""
    return Path(str(files(package)))


def module_file(module: str) -> Path:
    """Returns the source of a module that is run as a file of its own."""
    package, _, name = module.rpartition(".")
    return package_folder(package) / f"{name}.py"


def beside_package() -> Path:
    """Returns the folder that holds the packages: a checkout, or `site-packages`."""
    return package_folder("cdmpp").parent


def shipped_places(relative: Path | str) -> list[Path]:
    """Returns where a folder of the repository may lie: beside the package, below the working
    directory.
    """
    return [beside_package() / relative, Path.cwd() / relative]
