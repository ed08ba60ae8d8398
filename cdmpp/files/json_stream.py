"""Reader for JSON files of any size: yields the array of a top-level object in batches."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

import orjson

from cdmpp.errors import DataError
from cdmpp.files.open_text import open_binary
from cdmpp.text import counted

_CHUNK_BYTES = 1 << 18
#: Bytes read of a file to find its first keys.
_HEAD_BYTES = 1 << 20
#: Maximum length in characters of one element, or of one value beside the array.
_MOST_CHARACTERS = 64 << 20
#: A value with a syntax error is damaged, not incomplete, if more characters than this follow it.
_FAULT_DISTANCE = 1 << 16
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"\}\s*,\s*(?=\{)")
_TRIED_CUTS = 4
#: A `name` whose value ends where parsing fails: at a quotation mark that is not escaped.
_NAME_BEFORE = re.compile(r'"name"\s*:\s*"[^"]*"\s*,?\s*\Z')
_NEAR_NAME = 4096


def array_batches(
    path: Path,
    key: str,
    *,
    on_value: Callable[[str, Any], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> Iterator[list[Any]]:
    """Yields the elements of an array in batches; the file is never in memory as a whole.

    Args:
        path: a JSON object with `key`, or an array, whose elements are then yielded; may be
            compressed.
        on_value: called with every other (key, value) of the object.
        on_note: called for each ignored fault: a top-level array may lack its end (the trace event
            format allows it), and text may follow the JSON value. None = reject such files.

    Raises:
        DataError: the file is unreadable, not JSON, truncated, or has no such array.
    """
    with open_binary(path) as stream:
        reader = _Reader(stream, path, _CHUNK_BYTES)
        yield from reader.batches(key, on_value, on_note)
        rest = reader.rest()
    if rest:
        note = f"text after the JSON value ({rest!r}) is ignored"
        if on_note is None:
            raise DataError(f"{path}: {note}; expected one value; write each value to its own file")
        on_note(f"{note}; save each trace to its own file")


def top_level_keys(path: Path, *, most: int = 12) -> list[str]:
    """Returns the first keys of a JSON object, at most `most`; `["[]"]` for an array.

    The list ends at the first value that is not complete in the first mebibyte.

    Raises:
        DataError: the file is unreadable, not a JSON object or array, or ends before its first key
            or element.
    """
    with open_binary(path) as stream:
        return _Reader(stream, path, _HEAD_BYTES).first_keys(most)


class _CutOffError(DataError):
    """The file ends before its value does."""


class _Reader:
    def __init__(self, stream: IO[bytes], path: Path, first_bytes: int) -> None:
        self._stream, self._path = stream, path
        self._utf8 = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
        # Not strict: a line break in a string is unambiguous.
        self._decoder = json.JSONDecoder(strict=False)
        self._text, self._place = "", 0
        self._count = 0
        self._fill(first_bytes)

    def batches(
        self,
        key: str,
        on_value: Callable[[str, Any], None] | None,
        on_note: Callable[[str], None] | None,
    ) -> Iterator[list[Any]]:
        if self._begin() == "[":
            try:
                yield from self._elements()
            except _CutOffError:
                if on_note is None or not self._count:
                    raise
                cut = " and one is truncated" if self._place < len(self._text) else ""
                on_note(
                    "the list of events is truncated: "
                    f"{counted(self._count, 'event', 'are')} complete{cut}"
                )
                self._place = len(self._text)
            return
        has_found, others = False, []
        while (name := self._key()) is not None:
            if name != key:
                others.append(name)
                value = self._value()
                if on_value is not None:
                    on_value(name, value)
                continue
            if self._next_character() != "[":
                raise DataError(f"{self._path}: {key} is not a list; expected a list of objects")
            self._place += 1
            has_found = True
            yield from self._elements()
        if not has_found:
            raise DataError(
                f"{self._path}: no {key!r} in it (it has {', '.join(others[:6]) or 'nothing'}); "
                "expected an object with that list"
            )

    def rest(self) -> str:
        """Returns the beginning of the text after the JSON value; empty if there is none."""
        return self._text[self._place : self._place + 20] if self._reach_character() else ""

    def first_keys(self, most: int) -> list[str]:
        if self._begin() == "[":
            self._next_character()  # fails if the file ends here
            return ["[]"]
        keys: list[str] = []
        while len(keys) < most and (name := self._key()) is not None:
            keys.append(name)
            self._next_character()
            try:
                _, self._place = self._decoder.raw_decode(self._text, self._place)
            except (json.JSONDecodeError, RecursionError):
                break  # larger than the buffer, or damaged: `batches` reports it
            if self._place == len(self._text):
                break
        return keys

    def _begin(self) -> str:
        """Returns the file's first character and moves behind it."""
        if self._is_end:
            raise DataError(f"{self._path}: the file is empty; expected JSON")
        first = self._next_character()
        if first not in ("[", "{"):
            raise DataError(
                f"{self._path}: begins with {first!r}, expected a JSON object or list; expected "
                "a trace or a graph"
            )
        self._place += 1
        return first

    def _key(self) -> str | None:
        """Returns the next key and moves behind its colon; None at the end of the object."""
        while (character := self._next_character()) in ",}":
            self._place += 1
            if character == "}":
                return None
        name = self._value()
        if not isinstance(name, str) or self._next_character() != ":":
            raise self._broken("expected a name and a colon")
        self._place += 1
        return name

    def _elements(self) -> Iterator[list[Any]]:
        while (character := self._next_character()) != "]":
            if character == ",":
                self._place += 1
                continue
            batch = self._many() or self._one_by_one() or [self._value()]
            self._count += len(batch)
            yield batch
        self._place += 1

    def _many(self) -> list[Any]:
        """Parses the complete objects of the buffer in one call; returns [] if that fails."""
        self._forget()
        while len(self._text) < _CHUNK_BYTES // 2 and not self._is_end:
            self._fill()
        end = len(self._text)
        for _ in range(_TRIED_CUTS):
            cut = _last_cut(self._text, end)
            if cut is None:
                return []
            try:
                found = orjson.loads("[" + self._text[:cut] + "]")
            except orjson.JSONDecodeError:
                end = cut - 1
                continue
            self._place = cut
            return list(found)
        return []

    def _one_by_one(self) -> list[Any]:
        """Returns the objects of the buffer up to the first incomplete one.

        Slower than `_many`, but accepts NaN, which some profilers write.
        """
        found = []
        while self._place < len(self._text):
            character = self._text[self._place]
            if character in ", \t\r\n":
                self._place += 1
            elif character == "{":
                try:
                    value, self._place = self._decoder.raw_decode(self._text, self._place)
                except (json.JSONDecodeError, RecursionError):
                    break
                found.append(value)
            else:
                break
        return found

    def _value(self) -> Any:
        """Returns the JSON value at the current place."""
        self._next_character()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                distance = len(self._text) - error.pos
                # The error position of an incomplete string is the start of the string.
                is_text = error.msg.startswith("Unterminated")
                if self._is_end and (
                    is_text or distance <= 1 or not self._text[error.pos :].strip()
                ):
                    raise self._cut_off() from None
                is_damaged = distance > _FAULT_DISTANCE and not is_text
                size = len(self._text) - self._place
                if self._is_end or is_damaged or size > _MOST_CHARACTERS:
                    raise self._broken(error.msg, at=error.pos) from None
                # Doubling the text keeps the number of attempts at a large value small.
                self._fill(max(size, _CHUNK_BYTES))
            except RecursionError:
                raise self._broken("lists nest too deep") from None
            else:
                # A number at the end of the buffer may continue in the next chunk.
                if end < len(self._text) or self._is_end:
                    self._place = end
                    return value
                self._fill()

    def _next_character(self) -> str:
        """Moves to the next character that is not white space and returns it."""
        if not self._reach_character():
            raise self._cut_off()
        return self._text[self._place]

    def _reach_character(self) -> bool:
        """Moves to the next character that is not white space; returns whether there is one."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return True
            if self._is_end:
                return False
            self._forget()
            self._fill()

    def _fill(self, size_bytes: int = 0) -> None:
        chunk = self._stream.read(size_bytes or _CHUNK_BYTES)
        self._is_end = not chunk
        self._text += self._utf8.decode(chunk, final=self._is_end)

    def _forget(self) -> None:
        self._text = self._text[self._place :]
        self._place = 0

    def _cut_off(self) -> DataError:
        return _CutOffError(
            f"{self._path}: the file is truncated after "
            f"{counted(self._count, 'complete element')}; write it again, e.g. a trace with "
            "export_chrome_trace"
        )

    def _broken(self, what: str, *, at: int | None = None) -> DataError:
        place = self._place if at is None else at
        near = self._text[max(place - 20, 0) : place + 20]
        before = self._text[max(place - _NEAR_NAME, 0) : place]
        is_unescaped = "escape" in what or _NAME_BEFORE.search(before) is not None
        hint = (
            "a string is not escaped; torch writes such names with with_stack=True: leave this "
            "option out, or use a newer torch"
            if is_unescaped
            else "write the file again"
        )
        return DataError(
            f"{self._path}: not JSON after {counted(self._count, 'element')}: {what} near "
            f"{near!r}; {hint}"
        )


def _last_cut(text: str, end: int) -> int | None:
    """Returns the place behind the last `}` before `, {` in text[:end]; None if there is none."""
    low = max(end - (_CHUNK_BYTES >> 4), 0)
    while True:
        found = None
        for found in _BETWEEN.finditer(text, low, end):  # noqa: B007
            pass
        if found is not None:
            return found.start() + 1
        if low == 0:
            return None
        low = 0
