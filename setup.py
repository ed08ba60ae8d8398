"""Build entry point: the metadata is in pyproject.toml, here is what a wheel holds besides code."""

import importlib.util
import shutil
from pathlib import Path

from setuptools import Distribution, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_py import build_py

#: Folders of the checkout that a wheel holds below `cdmpp/shipped`; `cdmpp/files/places.py` finds
#: them, and MANIFEST.in brings them into a source distribution.
SHIPPED = ("configs", "data/tenset-cpu", "data/ansor-gpu", "data/timm-graphs")
#: Of them, what only the laboratory reads.
IN_NO_WHEEL = shutil.ignore_patterns("suites")
NATIVE = Path("cdmpp/programs/native")

# The package itself cannot be imported: what it needs is not there while it is built.
_spec = importlib.util.spec_from_file_location("compiler", NATIVE / "compiler.py")
compiler = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(compiler)


class BuildPackage(build_py):
    """Compiles the record featuriser, and copies the shipped folders beside the built package.

    An editable install has the library beside the sources, and the checkout's folders.
    """

    def run(self) -> None:
        super().run()
        built = Path() if self.editable_mode else Path(self.build_lib)
        library = built / NATIVE / compiler.library_name()
        if not self.editable_mode:
            shipped = built / "cdmpp" / "shipped"
            shutil.rmtree(shipped, ignore_errors=True)  # what an earlier build left
            for folder in SHIPPED:
                shutil.copytree(folder, shipped / folder, ignore=IN_NO_WHEEL)
            for other in set((built / NATIVE).glob("*.so")) - {library}:
                other.unlink()
        compiled = NATIVE / library.name  # its name has the hash of its sources
        if compiled.is_file() and not library.is_file():
            shutil.copy2(compiled, library)
        if not library.is_file():
            try:
                compiler.compile_library(library)
            except compiler.CompilerError as error:
                raise SystemExit(str(error)) from None


class PlatformWheel(bdist_wheel):
    """The library has a C interface, so that one wheel serves every Python 3 of its platform."""

    def get_tag(self) -> tuple[str, str, str]:
        return "py3", "none", super().get_tag()[2]


class PlatformDistribution(Distribution):
    """Has compiled code, though no extension module."""

    def has_ext_modules(self) -> bool:
        return True


setup(
    cmdclass={"build_py": BuildPackage, "bdist_wheel": PlatformWheel},
    distclass=PlatformDistribution,
)
