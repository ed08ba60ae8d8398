"""Build entry point: the metadata is in pyproject.toml, here is what a wheel holds besides code."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

#: Folders of the checkout that a wheel holds below `cdmpp/shipped`; `cdmpp/files/places.py` finds
#: them, and MANIFEST.in brings them into a source distribution.
SHIPPED = ("configs", "data/tenset-cpu", "data/ansor-gpu")


class BuildWithShipped(build_py):
    """Copies the shipped folders beside the built package; an editable install has the checkout."""

    def run(self) -> None:
        super().run()
        if self.editable_mode:
            return
        built = Path(self.build_lib) / "cdmpp" / "shipped"
        shutil.rmtree(built, ignore_errors=True)  # what an earlier build left
        for folder in SHIPPED:
            shutil.copytree(folder, built / folder)


setup(cmdclass={"build_py": BuildWithShipped})
