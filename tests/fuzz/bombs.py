"""Hand-made files that ask for too much, or reach for what is not theirs."""

from __future__ import annotations

import functools
import gzip
import io
import lzma
import struct
import tarfile
import zipfile
from collections.abc import Iterator

#: Pickles: sizes that are not there, memory and time that grow by doubling, names that are hidden.
PICKLE_BOMBS: tuple[bytes, ...] = (
    b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.",  # a text of 2^62 bytes
    b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b"x.",
    b"\x80\x02\x8b" + struct.pack("<i", 2**31 - 1) + b"\x01.",  # a number of 2^31 bytes
    b"\x80\x02\x8b" + struct.pack("<i", -1) + b".",
    b"\x80\x04\x95" + struct.pack("<Q", 2**60) + b"N.",  # a frame that is not there
    b"\x80\x02r" + struct.pack("<I", 2**31) + b"N.",
    b"\x80\x02" + b"(" * 50_000 + b".",
    b"\x80\x02" + b"]" * 50_000 + b"a" * 49_999 + b".",  # lists in lists in lists
    b"\x80\x02]2a.",  # a list that holds itself
    b"\x80\x02}" + b")" + b"2\x86" * 64 + b"Ns.",  # a key whose hash takes 2^64 steps
    b"\x80\x04}(" + b")" + b"2\x86" * 50 + b"\x91Ns.",  # so does that of a frozen set
    b"\x80\x04\x8f(" + b")" + b"q\x00h\x00\x86" + b"q\x00h\x00h\x00\x87" * 60 + b"\x90.",
    b"\x80\x02)" + b"2\x86" * 5000 + b".",
    b"I" + b"9" * 100_000 + b"\n.",
    b"L" + b"9" * 100_000 + b"L\n.",
    b"F" + b"9" * 100_000 + b"\n.",
    b"S'" + b"\\x41" * 50_000 + b"'\n.",
    b"V\\ud800\n.",
    b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
    b"\x80\x04\x8c\x08builtins\x8c\x0c__import__.x\x93.",  # a name with a dot
    b"\x80\x04\x8c\x1btvm.runtime.object.__init__\x8c\x0b__globals__\x93.",
    b"\x80\x04\x8c\x12tvm.runtime.object\x8c\x13Object.__subclasses\x93.",
    b"\x80\x02ctvm.runtime.object\nObject\n)\x81}\x8c\x0a__class__XNsb.",
    b"\x80\x02ctvm.runtime.object\nObject\n)R}X\x05\x00\x00\x00stateK\x01sb.",
    b"ios\nsystem\n.", b"(ios\nsystem\n.", b"(cos\nsystem\nS'true'\no.",
    b"\x80\x02\x82\xff.", b"\x80\x05\x97.", b"\x80\x05\x98.", b"Px\n.", b"K\x01Q.", b"\x80\xff.",
    b"", b".", b"0.", b"\x80\x02N", b"\x80\x02(t(t\x85R.",
)  # fmt: skip

#: Paths of an archive's members that lead elsewhere.
MEMBER_PATHS = (
    "../x", "a/../../x", "/tmp/cdmpp-member", "//x", "a//../../../x", "..", ".", "a/./b", "C:\\x",
    "..\\x", "a/\x00b", "~/x", "a" * 300, "/".join("d" * 1000), 
    "\u202e", "-rf", "a\nb", "con", "",
)  # fmt: skip
ZEROS = bytes(1 << 20)


def tar_archives(inner: str, content: bytes, *, bomb_mib: int) -> Iterator[tuple[str, bytes]]:
    """Yields (name, bytes) of gzipped tar archives of which each has a member that it must not
    have, or one that is far larger than the archive.

    Args:
        inner: path of a member as it should be.
        bomb_mib: size of what a bomb unpacks to.
    """
    for path in MEMBER_PATHS:
        head = inner.rpartition("/")[0]
        yield f"member {path[:40]!r}", _tar([(f"{head}/{path}", content)])
        yield f"member {path[:40]!r} alone", _tar([(path, content)])
    for kind, word in (
        (tarfile.SYMTYPE, "symbolic link"), (tarfile.LNKTYPE, "link"),
        (tarfile.FIFOTYPE, "pipe"), (tarfile.CHRTYPE, "device"),
    ):  # fmt: skip
        for target in ("/etc/passwd", "../../../x", "/dev/zero"):
            yield f"{word} to {target}", _tar([(inner, content)], link=(kind, inner, target))
    yield "bomb", _tar([(inner, ZEROS * bomb_mib)])
    yield "bomb in a bomb", gzip.compress(gzip.compress(ZEROS * bomb_mib))
    yield "many members", _tar([(inner + str(n), b"") for n in range(3000)])
    yield "size that is not there", _tar([(inner, content)])[:-40]
    yield "endless header", gzip.compress(b"\xff" * (1 << 20))


def zip_archives(inner: str, content: bytes, *, bomb_mib: int) -> Iterator[tuple[str, bytes]]:
    """Yields the same as zip archives."""
    for path in MEMBER_PATHS:
        head = inner.rpartition("/")[0]
        yield f"zip member {path[:40]!r}", _zip([(f"{head}/{path}", content)])
    yield "zip bomb", _zip([(inner, ZEROS * bomb_mib)])
    yield "zip of one name twice", _zip([(inner, content), (inner, b"other")])
    whole = _zip([(inner, ZEROS)])
    for size in (0, 1, 2**31 - 1):  # the central directory lies about the size
        at = whole.rindex(b"PK\x01\x02") + 24
        yield f"zip of size {size}", whole[:at] + struct.pack("<I", size) + whole[at + 4 :]


def compressed_bombs(mib: int) -> Iterator[tuple[str, bytes]]:
    """Yields gzip and xz streams of zeros, and such that end or break."""
    for name, data in zip(("gzip", "xz"), _packed_zeros(mib), strict=True):
        yield f"{name} of {mib} MiB", data
        yield f"{name} cut off", data[: len(data) // 2]
        yield f"{name} of nothing", data[:6]
        yield f"{name} with rubbish behind", data + b"rubbish"


@functools.cache
def _packed_zeros(mib: int) -> tuple[bytes, bytes]:
    """Returns zeros as gzip and xz: seconds of work that many cases share."""
    return gzip.compress(ZEROS * mib), lzma.compress(ZEROS * mib)


def _tar(members: list[tuple[str, bytes]], *, link: tuple[bytes, str, str] | None = None) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz", format=tarfile.PAX_FORMAT) as archive:
        if link is not None:
            info = tarfile.TarInfo(link[1])
            info.type, info.linkname = link[0], link[2]
            archive.addfile(info)
        for path, data in members:
            info = tarfile.TarInfo(path)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return stream.getvalue()


def _zip(members: list[tuple[str, bytes]]) -> bytes:
    import warnings

    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for path, data in members:
            archive.writestr(zipfile.ZipInfo(path), data, zipfile.ZIP_DEFLATED)
    return stream.getvalue()
