"""Packed campaigns, as `data/` keeps them, become datasets."""

from __future__ import annotations

import lzma
import shutil
import tarfile
from pathlib import Path

from cdmpp.datasets.extraction.extract import OnProgress
from cdmpp.datasets.extraction.extracted import PACKED_CAMPAIGN, is_extracted_dir
from cdmpp.datasets.extraction.machine_code import IN_NETWORK
from cdmpp.datasets.extraction.machine_code import PATTERN as MACHINE_CODE
from cdmpp.errors import DataError
from cdmpp.files.atomic import replaced_folder, sha256_file
from tvm_helper.measure.tables import write_tables


def unpacked(place: Path, cache_dir: Path, *, on_progress: OnProgress = lambda _: None) -> Path:
    """Returns the folder in the cache of a packed campaign, with its tables, made where they are
    not there yet.

    Raises:
        DataError: the archive is damaged, or the folder cannot be written.
    """
    archive = place / PACKED_CAMPAIGN
    folder = cache_dir / f"{place.resolve().name}-{sha256_file(archive)[:12]}"
    if not folder.is_dir():
        with replaced_folder(folder, what="unpacked campaign") as new:
            try:
                with tarfile.open(archive) as stream:
                    stream.extractall(new, filter="data")
            except (tarfile.TarError, lzma.LZMAError, EOFError) as error:
                why = " ".join(str(error).split())[:200]
                raise DataError(
                    f"{archive} is damaged ({why}); expected what packs a campaign of "
                    "cdmpp measure, take it from its source again"
                ) from None
            for path in sorted([*place.glob(MACHINE_CODE), *place.glob(IN_NETWORK)]):
                shutil.copyfile(path, new / path.name)
    if not is_extracted_dir(folder):
        write_tables(folder, on_progress=on_progress)
    return folder
