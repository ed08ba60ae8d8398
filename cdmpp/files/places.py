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


def is_checkout() -> bool:
    """Whether the package is used from a checkout: run there, or installed as editable."""
    return (beside_package() / "pyproject.toml").is_file()


def shipped_places(relative: Path | str) -> list[Path]:
    """Returns where a shipped file or folder of the repository may lie: in the checkout, or in the
    installed package (`setup.py` says what a wheel holds); then below the working directory.
    """
    here = beside_package() if is_checkout() else package_folder("cdmpp") / "shipped"
    return [here / relative, Path.cwd() / relative]


def given_or_shipped(path: Path | str) -> Path:
    """Returns a path as it was given; where nothing is there, the shipped file of that name, if
    there is one (`configs/train/quick.yaml` from any folder).
    """
    path = Path(path)
    if path.is_absolute() or path.exists():
        return path
    return next((place for place in shipped_places(path) if place.is_file()), path)
