"""Compressed logs: a plain concatenation of Zstandard frames with content checksums.

Frame 1 is exactly the header line, then one frame per durable write.  Decoded, the
frames are the same lines as in an uncompressed log, so one scanner serves both.
:class:`FrameReader` hands it the decoded bytes and puts a mark in the place of
what cannot be decoded; the mark is never part of a valid log, so the scanner
finds a defect there and decides by what follows it, as in any log.

A frame says in its own structure where it ends, and that structure is walked here
before anything is decoded: sizes are bounded before memory is taken, and a frame
cut short is told from a broken one.  A frame that fails is searched for the start
of another, because a broken length must not hide the intact frames behind it.
"""

from __future__ import annotations

import bisect
import itertools
from array import array
from typing import TYPE_CHECKING, Final, Literal, NamedTuple

from msgspec import Struct

from sessionstore.errors import StorageError
from sessionstore.recovery.format import MAX_LINE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from types import ModuleType

__all__ = [
    "BLANK_MARK",
    "BROKEN_MARK",
    "MAX_FRAME",
    "DefectKind",
    "FrameDefect",
    "FrameEnd",
    "FrameReader",
    "encode_frame",
    "gather",
    "salvaged",
]

MAX_FRAME: Final = MAX_LINE + 1024 * 1024
"""Most decoded bytes of one frame: what one write may hold, and room for newlines and the keys of packed rows."""

BROKEN_MARK: Final = b"\xff"
"""Decoded in the place of what cannot be decoded; a byte that no UTF-8 text holds."""

BLANK_MARK: Final = b"\0"
"""Decoded in the place of NULs between or behind the frames."""

DefectKind = Literal["torn", "corrupt", "oversize", "garbage"]

_LEVEL: Final = 6  # of a turn of 50 KB it takes a millisecond, and a sixth off what level 3 leaves
_MAGIC: Final = b"\x28\xb5\x2f\xfd"
_MAX_BLOCK: Final = 128 * 1024
_MAX_WINDOW: Final = 128 * 1024 * 1024
_RLE, _COMPRESSED, _RESERVED = 1, 2, 3
# Bytes that may be looked at again after failures, beyond a multiple of the file: keeps hostile files linear.
_SECOND_LOOKS: Final = 16 * 1024 * 1024

_State = Literal["more", "end", "corrupt", "oversize"]


class FrameEnd(NamedTuple):
    """Where a complete frame ends, in the file and in the decoded bytes."""

    compressed: int
    decoded: int


class FrameDefect(Struct, frozen=True):
    """A stretch of the file without an intact frame: *offset* and *length* in the file, *decoded* where its mark is.

    ``torn``: the file ends inside a frame; ``corrupt``: broken structure, data or checksum; ``oversize``: decodes to
    more than the limit; ``garbage``: bytes that begin no frame.  *blank*: all of it is NUL.
    """

    kind: DefectKind
    offset: int
    length: int
    decoded: int
    blank: bool


class FrameReader:
    """Decodes a compressed log piece by piece; the result is the same for any pieces.

    At most one frame is held in memory.  ``defects`` grows as they are found.
    """

    def __init__(self, *, limit: int = MAX_FRAME) -> None:
        """*limit* is the most decoded bytes of one frame.

        Raises:
            StorageError: the ``zstandard`` package is not installed.
        """
        self.defects: list[FrameDefect] = []
        self._decoder = _Decoder(limit)
        self._buffer = bytearray()
        self._base = 0  # file offset of the buffer's first byte
        self._walk = _Walk(limit)
        self._broken: tuple[DefectKind, int] | None = None  # the defect that goes on: kind, file offset
        self._broken_is_blank = True
        self._looks = 0  # bytes looked at in vain
        self._decoded = 0
        self._out: list[bytes] = []
        self._ends = (array("Q"), array("Q"))

    @property
    def decoded(self) -> int:
        """How many decoded bytes were handed out so far, marks included."""
        return self._decoded

    @property
    def frames(self) -> int:
        """How many intact frames there were so far."""
        return len(self._ends[0])

    def end_before(self, decoded_offset: int) -> FrameEnd:
        """The last end of an intact frame at or before *decoded_offset*; (0, 0) when there is none.

        The file may be cut there; the decoded bytes from there to *decoded_offset* have to be written again as a
        new frame (:func:`salvaged` gives them).
        """
        compressed, decoded = self._ends
        found = bisect.bisect_right(decoded, decoded_offset) - 1
        return FrameEnd(compressed[found], decoded[found]) if found >= 0 else FrameEnd(0, 0)

    def feed(self, data: bytes | memoryview) -> Iterator[bytes]:
        """Take the next bytes of the file; the decoded bytes of all frames that are complete now.

        A frame is decoded when the iterator gets to it, so that a piece which holds many of them costs no more
        memory than one.  The iterator has to be exhausted before anything else is asked.
        """
        self._buffer += data
        return self._run(at_end=False)

    def finish(self) -> Iterator[bytes]:
        """There are no more bytes; the decoded bytes of what is left: the beginning of a torn frame, and a mark."""
        yield from self._run(at_end=True)
        if self._broken is not None:
            self._close_broken(self._base, last=True)
        yield from self._take()

    def _take(self) -> list[bytes]:
        out, self._out = self._out, []
        return out

    def _emit(self, data: bytes) -> None:
        if data:
            self._out.append(data)
            self._decoded += len(data)

    def _run(self, *, at_end: bool) -> Iterator[bytes]:
        start = 0  # of the frame looked at, in the buffer
        while True:
            if not self._walk.position:
                start = self._next_start(start, at_end=at_end)
                if start == len(self._buffer) or (not at_end and len(self._buffer) - start < len(_MAGIC)):
                    break
            state = self._walk.go(self._buffer, start)
            if state == "more" and not at_end:
                break
            if state == "end":
                state = self._complete(start)
            if state == "end":
                start += self._walk.position
            else:
                start = self._fail(start, "torn" if state == "more" else state)
            self._walk = _Walk(self._walk.limit)
            yield from self._take()
        del self._buffer[:start]
        self._base += start

    def _next_start(self, start: int, *, at_end: bool) -> int:
        """Where the next frame may begin, at or after *start*; what is skipped belongs to a defect."""
        size = len(self._buffer)
        head = bytes(self._buffer[start : start + 4])
        begins = _begins_frame(head) if self._broken is None else head == _MAGIC  # the only start that is searched for
        if not head or begins or (not at_end and len(head) < len(_MAGIC)):
            return start
        found = self._buffer.find(_MAGIC, start + 1)
        if found < 0:  # the last bytes may be the beginning of a magic number
            found = size if at_end else max(start + 1, size - len(_MAGIC) + 1)
        if self._broken is None:
            self._open_broken("garbage", start)
        self._skip(start, found)
        return found

    def _complete(self, start: int) -> _State:
        """Decode the frame at *start*, whose structure is whole, and hand it out."""
        end = start + self._walk.position
        data = self._decoder.whole(bytes(self._buffer[start:end]), self._walk)
        if isinstance(data, str):
            return data
        if self._broken is not None:
            self._close_broken(self._base + start, last=False)
        self._emit(data)
        self._ends[0].append(self._base + end)
        self._ends[1].append(self._decoded)
        return "end"

    def _fail(self, start: int, kind: Literal["torn", "corrupt", "oversize"]) -> int:
        """The frame at *start* is not intact: hand out what can be trusted of it; where to look for another one."""
        if self._broken is None:
            self._emit(self._decoder.beginning(bytes(self._buffer[start : start + self._walk.position]), self._walk))
            self._open_broken(kind, start)
        self._looks += self._walk.position
        within_budget = self._looks <= 4 * (self._base + len(self._buffer)) + _SECOND_LOOKS
        behind = len(_MAGIC) if within_budget else max(self._walk.position, len(_MAGIC))
        found = min(start + behind, len(self._buffer))
        self._skip(start, found)
        return found

    def _open_broken(self, kind: DefectKind, start: int) -> None:
        self._broken = (kind, self._base + start)
        self._broken_is_blank = True

    def _skip(self, start: int, stop: int) -> None:
        self._broken_is_blank = self._broken_is_blank and not self._buffer[start:stop].strip(b"\0")

    def _close_broken(self, stop: int, *, last: bool) -> None:
        """The defect ends at file offset *stop*: put its mark, as a line of its own unless the file ends there."""
        if self._broken is None:
            return
        kind, offset = self._broken
        if kind == "torn" and not last:
            kind = "corrupt"  # it only seemed to reach to the end of the file
        self._broken = None
        self.defects.append(FrameDefect(kind, offset, stop - offset, self._decoded, self._broken_is_blank))
        self._emit((BLANK_MARK if self._broken_is_blank else BROKEN_MARK) + (b"" if last else b"\n"))


class _Walk:
    """Walks the structure of one frame: how far it goes and how much it may decode to."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.position = 0  # bytes of the frame whose structure was seen whole
        self.skippable = False
        self.bound = 0  # most bytes that the blocks seen can decode to
        self.content: int | None = None  # the decoded size that the header claims
        self.pieces = array("Q")  # ends of the header and of each block
        self._sure = 0  # bytes they decode to at least
        self._checksum = 0
        self._last = False
        self.complete = False

    def go(self, buffer: bytearray, start: int) -> _State:
        """Go on as far as *buffer*, where the frame begins at *start*, reaches."""
        while True:
            available = len(buffer) - start - self.position
            if self._last:
                if available < self._checksum:
                    return "more"
                self.position += self._checksum
                self.complete = True
                return "end"
            state = self._block(buffer, start, available) if self.position else self._header(buffer, start, available)
            if state is not None:
                return state
            if self._sure > self.limit or self.position > self.limit + self.limit // 64 + _MAX_BLOCK:
                return "oversize"

    def _header(self, buffer: bytearray, start: int, available: int) -> _State | None:
        if available < 5:
            return "more"
        if buffer[start + 1] != _MAGIC[1]:
            return self._skippable_header(buffer, start, available)
        flags = buffer[start + 4]
        single = bool(flags & 0x20)
        dictionary = (0, 1, 2, 4)[flags & 3]
        content = (1 if single else 0, 2, 4, 8)[flags >> 6]
        size = 5 + (not single) + dictionary + content
        if flags & 0x08:
            return "corrupt"
        if available < size:
            return "more"
        if content:
            end = start + size
            self.content = int.from_bytes(buffer[end - content : end], "little") + (256 if content == 2 else 0)
            if self.content > self.limit:
                return "oversize"
        self._checksum = 4 if flags & 0x04 else 0
        self.position = size
        self.pieces.append(size)
        return None

    def _skippable_header(self, buffer: bytearray, start: int, available: int) -> _State | None:
        if available < 8:
            return "more"
        self.skippable = True
        size = 8 + int.from_bytes(buffer[start + 4 : start + 8], "little")
        if size > self.limit:
            return "oversize"
        if available < size:
            return "more"
        self.position = size
        self._last = True
        return None

    def _block(self, buffer: bytearray, start: int, available: int) -> _State | None:
        if available < 3:
            return "more"
        at = start + self.position
        head = int.from_bytes(buffer[at : at + 3], "little")
        kind, size = head >> 1 & 3, head >> 3
        if kind == _RESERVED or size > _MAX_BLOCK:
            return "corrupt"
        body = 1 if kind == _RLE else size
        if available < 3 + body:
            return "more"
        self.bound += _MAX_BLOCK if kind == _COMPRESSED else size
        self._sure += 0 if kind == _COMPRESSED else size
        self._last = bool(head & 1)
        self.position += 3 + body
        self.pieces.append(self.position)
        return None


class _Decoder:
    """Decodes frames whose structure was walked, never to more than the limit."""

    def __init__(self, limit: int) -> None:
        self._zstd = _zstandard()
        self._limit = limit
        self._whole = self._zstd.ZstdDecompressor(max_window_size=_MAX_WINDOW)

    def whole(self, frame: bytes, walk: _Walk) -> bytes | Literal["corrupt", "oversize"]:
        """The content of a complete *frame*; what is wrong with it where it has none."""
        if walk.skippable:
            return b""
        if walk.content is not None and walk.content > walk.bound:
            return "corrupt"  # never take memory on the word of a header
        if walk.content == 0 and walk.bound:
            return "corrupt"  # the library takes that word without a look at the blocks
        if walk.bound > self._limit:
            return self._slowly(frame, walk)
        try:
            if walk.content == 0:  # nor does it look at the checksum, which may be the beginning of another frame
                return bytes(self._whole.decompressobj().decompress(frame))
            return bytes(self._whole.decompress(frame, max_output_size=max(walk.bound, 1)))
        except self._zstd.ZstdError:
            return "corrupt"

    def beginning(self, frame: bytes, walk: _Walk) -> bytes:
        """What the blocks of an incomplete or broken *frame* decode to, up to the first one that does not.

        Nothing when they all do and the checksum still says that they are wrong.
        """
        if walk.skippable:
            return b""
        data, decoded = self._blocks(frame, walk)
        checksum_failed = walk.complete and decoded == len(walk.pieces)
        return b"" if checksum_failed else data[: self._limit]

    def _slowly(self, frame: bytes, walk: _Walk) -> bytes | Literal["corrupt", "oversize"]:
        """As :meth:`whole` for many small blocks, which could decode to more than the limit and rarely do."""
        data, decoded = self._blocks(frame, walk)
        if len(data) > self._limit:
            return "oversize"
        if decoded < len(walk.pieces):
            return "corrupt"
        try:
            return bytes(self._whole.decompress(frame, max_output_size=len(data) + 1))
        except self._zstd.ZstdError:
            return "corrupt"

    def _blocks(self, frame: bytes, walk: _Walk) -> tuple[bytes, int]:
        """The decoded blocks and how many pieces were good; ends soon after the limit."""
        decoder = self._zstd.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompressobj()
        parts: list[bytes] = []
        size = start = good = 0
        for stop in walk.pieces:
            try:
                part = decoder.decompress(frame[start:stop])
            except self._zstd.ZstdError:
                break
            parts.append(part)
            size += len(part)
            start = stop
            good += 1
            if size > self._limit:
                break
        return b"".join(parts), good


def encode_frame(data: bytes) -> bytes:
    """One frame with a content checksum that decodes to *data*.

    Raises:
        StorageError: the ``zstandard`` package is not installed.
    """
    return bytes(_zstandard().ZstdCompressor(level=_LEVEL, write_checksum=True).compress(data))


def salvaged(tail: bytes, length: int) -> bytes:
    """The first *length* decoded bytes of *tail*, the bytes of a log from the end of an intact frame on."""
    reader = FrameReader()
    return gather(itertools.chain(reader.feed(tail), reader.finish()), length)[:length]


def gather(parts: Iterable[bytes], enough: int) -> bytes:
    """The first of *parts* together, as many as it takes to have *enough* bytes; the others are not decoded."""
    found: list[bytes] = []
    size = 0
    for part in parts:
        found.append(part)
        size += len(part)
        if size >= enough:
            break
    return b"".join(found)


def _begins_frame(head: bytes) -> bool:
    return head == _MAGIC or (len(head) == 4 and head[0] & 0xF0 == 0x50 and head[1:] == b"\x2a\x4d\x18")


def _zstandard() -> ModuleType:
    try:
        import zstandard  # noqa: PLC0415  # optional, and only for compressed logs
    except ImportError as error:
        raise StorageError(
            "read or write a compressed log without the zstandard package",
            hint="install the extra: pip install 'sessionstore[zstd]'",
        ) from error
    return zstandard
