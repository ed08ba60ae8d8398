"""Paths of files shipped with the package and of files in a checkout."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path


def package_folder(package: str) -> Path:
    """Returns the folder of an importable package, by its dotted name (`cdmpp.devices`)."""
    return Path(str(files(package)))


def module_file(module: str) -> Path:
    """Returns the source file of a module that is run as a script."""
    package, _, name = module.rpartition(".")
    return package_folder(package) / f"{name}.py"


def beside_package() -> Path:
    """Returns the folder that holds the packages: a checkout, or `site-packages`."""
    return package_folder("cdmpp").parent


def is_checkout() -> bool:
    """Whether the package is used from a checkout: run there, or an editable install."""
    return (beside_package() / "pyproject.toml").is_file()


def shipped_places(relative: Path | str) -> list[Path]:
    """Returns the possible paths of a shipped file or folder of the repository, in search order.

    First the checkout, or the installed package (see `setup.py` for the content of a wheel); then
    the working directory.
    """
    here = beside_package() if is_checkout() else package_folder("cdmpp") / "shipped"
    return [here / relative, Path.cwd() / relative]


def given_or_shipped(path: Path | str) -> Path:
    """Returns `path`; if it does not exist, the shipped file of that name, if there is one.

    For example, `configs/train/quick.yaml` works from any folder.
    """
    path = Path(path)
    if path.is_absolute() or path.exists():
        return path
    return next((place for place in shipped_places(path) if place.is_file()), path)
