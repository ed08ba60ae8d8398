"""Large JSON files piece by piece: one array of a top-level object, never the whole file."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from cdmpp.errors import DataError

_CHUNK = 1 << 20
#: A single value beyond this is not decoded.
_LARGEST_VALUE = 64 << 20
_SPACE = re.compile(r"[ \t\r\n]*")


def open_text(path: Path) -> IO[str]:
    """Returns a text file, unpacked where its name ends in `.gz`.

    Raises:
        DataError: it cannot be opened.
    """
    try:
        if path.suffix == ".gz":
            return io.TextIOWrapper(gzip.open(path), encoding="utf-8")
        return path.open(encoding="utf-8")
    except OSError as error:
        raise DataError(
            f"{path}: cannot read ({error.strerror or error}); expected a trace or graph file"
        ) from None


def stream_array(
    path: Path, key: str, *, on_value: Callable[[str, Any], None] | None = None
) -> Iterator[Any]:
    """Yields the elements of an array, decoded one by one.

    Args:
        path: a JSON object with that key, or a JSON array, whose elements are yielded then.
        key: of the array in the object.
        on_value: is told every other (key, value) of the object as it is met.

    Raises:
        DataError: unreadable, no JSON, cut off, or without the array.
    """
    with open_text(path) as stream:
        yield from _Reader(stream, path).elements(key, on_value)


def top_level_keys(path: Path, *, most: int = 12) -> list[str]:
    """Returns the first keys of a JSON object, as far as they are small; `["[]"]` for an array.

    Raises:
        DataError: unreadable, or no JSON object or array.
    """
    with open_text(path) as stream:
        return _Reader(stream, path).first_keys(most)


class _Reader:
    def __init__(self, stream: IO[str], path: Path) -> None:
        self._stream, self._path = stream, path
        self._decoder = json.JSONDecoder()
        self._text, self._at = "", 0
        self._is_end = False
        self._count = 0

    def elements(self, key: str, on_value: Callable[[str, Any], None] | None) -> Iterator[Any]:
        first = self._next_character()
        if first == "[":
            self._at += 1
            yield from self._array()
            return
        if first != "{":
            raise DataError(
                f"{self._path}: begins with {first!r}, expected a JSON object with {key!r}; is it "
                "a trace?"
            )
        self._at += 1
        has_found = False
        while True:
            if self._next_character() == "}":
                break
            name = self._value()
            self._expect(":")
            if name == key:
                if self._next_character() != "[":
                    raise DataError(f"{self._path}: {key} is no list; expected a list of objects")
                self._at += 1
                has_found = True
                yield from self._array()
            else:
                value = self._value()
                if on_value is not None:
                    on_value(str(name), value)
            if self._next_character() == ",":
                self._at += 1
        if not has_found:
            raise DataError(f"{self._path}: no {key!r} in it; expected an object with that list")

    def first_keys(self, most: int) -> list[str]:
        first = self._next_character()
        if first == "[":
            return ["[]"]
        if first != "{":
            raise DataError(
                f"{self._path}: begins with {first!r}, expected a JSON object; see docs/replay.md "
                "for what can be read"
            )
        self._at += 1
        keys: list[str] = []
        while len(keys) < most and self._next_character() != "}":
            keys.append(str(self._value()))
            self._expect(":")
            self._next_character()
            try:
                _, self._at = self._decoder.raw_decode(self._text, self._at)
            except (json.JSONDecodeError, RecursionError):
                break  # larger than the buffer, or broken: reading it says so
            if self._at == len(self._text) or self._next_character() != ",":
                break
            self._at += 1
        return keys

    def _array(self) -> Iterator[Any]:
        while True:
            character = self._next_character()
            if character == "]":
                self._at += 1
                return
            if character == ",":
                self._at += 1
                continue
            value = self._value()
            self._count += 1
            yield value

    def _value(self) -> Any:
        self._next_character()
        wanted = _CHUNK
        while True:
            try:
                value, stop = self._decoder.raw_decode(self._text, self._at)
            except RecursionError:
                raise DataError(f"{self._path}: nested too deeply; expected a trace") from None
            except json.JSONDecodeError as error:
                # A value that the buffer's end cuts: more of the file, twice as much each time.
                if self._is_end:
                    raise self._broken(error.msg, error.pos) from None
            else:
                # A number at the buffer's end may go on.
                if stop < len(self._text) or self._is_end:
                    self._at = stop
                    return value
            if len(self._text) - self._at > _LARGEST_VALUE:
                raise DataError(f"{self._path}: one value of over 64 MB; expected a trace")
            self._read(wanted)
            wanted *= 2

    def _expect(self, character: str) -> None:
        found = self._next_character()
        if found != character:
            raise self._broken(f"got {found!r}, expected {character!r}", self._at)
        self._at += 1

    def _next_character(self) -> str:
        """Returns the next character that is no white space, without passing it."""
        while True:
            match = _SPACE.match(self._text, self._at)
            assert match is not None
            self._at = match.end()
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_end:
                raise self._broken("the file ends", self._at)
            self._read(_CHUNK)

    def _read(self, count: int) -> None:
        try:
            more = self._stream.read(count)
        except (OSError, EOFError, zlib.error) as error:
            raise DataError(
                f"{self._path}: cannot be unpacked beyond its element {self._count} ({error}); "
                "the file is damaged or cut off, write it again"
            ) from None
        except UnicodeDecodeError:
            raise DataError(f"{self._path}: not UTF-8 text; expected JSON") from None
        self._is_end = not more
        self._text = self._text[self._at :] + more
        self._at = 0

    def _broken(self, what: str, position: int) -> DataError:
        is_cut = len(self._text) - position < 2 or what.startswith("Unterminated")
        if self._is_end and is_cut:
            if self._count == 0 and not self._text.strip():
                return DataError(f"{self._path}: the file is empty; expected JSON")
            return DataError(
                f"{self._path}: cut off after {self._count} complete elements ({what}); the "
                "program that wrote it was stopped, record the trace again"
            )
        return DataError(
            f"{self._path}: not JSON after {self._count} elements ({what}); write the file again"
        )
