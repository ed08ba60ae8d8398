"""Chrome traces of any size: the events one batch after another, never the whole file in memory."""

from __future__ import annotations

import codecs
import gc
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import orjson

from cdmpp.errors import DataError
from cdmpp.files.open_text import open_binary

_CHUNK_BYTES = 1 << 19
#: Most characters of one event or of one value beside the events.
_MOST_CHARACTERS = 64 << 20
#: A value that does not parse is damaged, not unfinished, when its fault is so far from the end.
_FAULT_DISTANCE = 1 << 16
_SPACE = re.compile(r"[ \t\r\n]*")
_BETWEEN = re.compile(r"\}\s*,\s*(?=\{)")
_TRIED_CUTS = 4


class TraceStream:
    """Reads a trace: an object with `traceEvents`, or a bare list of events.

    Attributes:
        head: what stands beside the events, filled while they are read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.head: dict[str, Any] = {}
        self._decoder = json.JSONDecoder()
        self._text = ""
        self._place = 0
        self._is_end = False
        self._has_events = False

    def batches(self) -> Iterator[list[Any]]:
        """Yields lists of events.

        Raises:
            DataError: not JSON, truncated, or without events.
        """
        with open_binary(self.path) as stream:
            self._stream: IO[bytes] = stream
            self._utf8 = codecs.getincrementaldecoder("utf-8-sig")(errors="replace")
            first = self._next_character()
            if first == "[":
                self._place += 1
                yield from self._events()
            elif first == "{":
                yield from self._object()
            else:
                raise self._error("it does not begin with { or [")

    def _object(self) -> Iterator[list[Any]]:
        self._place += 1
        while True:
            char = self._next_character()
            if char == "}":
                self._place += 1
                break
            if char == ",":
                self._place += 1
                continue
            key = self._value()
            if not isinstance(key, str) or self._next_character() != ":":
                raise self._error("expected a name and a colon")
            self._place += 1
            if key == "traceEvents":
                if self._next_character() != "[":
                    raise self._error("traceEvents is no list")
                self._place += 1
                yield from self._events()
            else:
                self.head[key] = self._value()
        if not self._has_events:
            raise DataError(
                f"{self.path}: JSON without traceEvents (it has "
                f"{', '.join(sorted(self.head)[:6]) or 'nothing'}); expected a trace of "
                "torch.profiler or TensorBoard"
            )

    def _events(self) -> Iterator[list[Any]]:
        self._has_events = True
        while True:
            char = self._next_character()
            if char == "]":
                self._place += 1
                return
            if char == ",":
                self._place += 1
                continue
            yield self._many() or self._one_by_one() or [self._value()]

    def _many(self) -> list[Any]:
        """Returns the whole events in the buffer, parsed at once; empty = that cannot be done."""
        self._forget()
        while len(self._text) < _CHUNK_BYTES and not self._is_end:
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
        """Returns the events in the buffer up to the first that is not whole.

        Slower, but it accepts NaN, which some profilers write.
        """
        found = []
        while self._place < len(self._text):
            char = self._text[self._place]
            if char in ", \t\r\n":
                self._place += 1
            elif char == "{":
                try:
                    value, self._place = self._decoder.raw_decode(self._text, self._place)
                except (json.JSONDecodeError, RecursionError):
                    break
                found.append(value)
            else:
                break
        return found

    def _value(self) -> Any:
        """Returns the JSON value at the place."""
        self._next_character()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._text, self._place)
            except json.JSONDecodeError as error:
                is_far = len(self._text) - error.pos > _FAULT_DISTANCE
                # The fault of an unfinished text is where the text begins.
                is_text = "Unterminated string" in error.msg
                too_long = len(self._text) - self._place > _MOST_CHARACTERS
                if (is_far and not is_text) or too_long:
                    raise self._error(error.msg.lower(), at=error.pos) from None
                if self._is_end:
                    if (
                        is_text
                        or len(self._text) - error.pos <= 1
                        or not self._text[error.pos :].strip()
                    ):
                        raise self._truncated() from None
                    raise self._error(error.msg.lower(), at=error.pos) from None
                self._fill()
                continue
            except RecursionError:
                raise self._error("lists nest too deep") from None
            # A number at the end of the buffer may go on.
            if end == len(self._text) and not self._is_end:
                self._fill()
                continue
            self._place = end
            return value

    def _next_character(self) -> str:
        """Returns the next character that is no space, where the place then is."""
        while True:
            found = _SPACE.match(self._text, self._place)
            self._place = found.end() if found else self._place
            if self._place < len(self._text):
                return self._text[self._place]
            if self._is_end:
                raise self._truncated()
            self._forget()
            self._fill()

    def _fill(self) -> None:
        chunk = self._stream.read(_CHUNK_BYTES)
        self._is_end = not chunk
        self._text += self._utf8.decode(chunk, final=self._is_end)

    def _forget(self) -> None:
        self._text = self._text[self._place :]
        self._place = 0

    def _truncated(self) -> DataError:
        return DataError(
            f"{self.path}: the trace ends too early, so the file is truncated; write it again, "
            "e.g. with export_chrome_trace"
        )

    def _error(self, what: str, *, at: int | None = None) -> DataError:
        place = self._place if at is None else at
        near = self._text[max(place - 20, 0) : place + 20]
        return DataError(
            f"{self.path}: not a chrome trace: {what} near {near!r}; expected JSON with "
            "traceEvents, as torch.profiler's export_chrome_trace writes it"
        )


@contextmanager
def without_collector() -> Iterator[None]:
    """Stops the search for cycles: events have none, and it would look at every new one."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _last_cut(text: str, end: int) -> int | None:
    """Returns the place behind the last `}` before `, {` in text[:end]; None = there is none."""
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
