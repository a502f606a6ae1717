"""One session's log below a root of its own, written by a :class:`JsonlWriter` over faulty files."""

from __future__ import annotations

import asyncio
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sessionstore.backends.base import Batch
from sessionstore.backends.jsonl.frames import FrameReader
from sessionstore.backends.jsonl.lock import SessionLock
from sessionstore.backends.jsonl.writer import JsonlWriter
from sessionstore.backends.paths import Compression, session_paths
from sessionstore.errors import StorageError
from sessionstore.header import make_header
from tests.faults import FaultyFiles

if TYPE_CHECKING:
    from collections.abc import Generator

    from sessionstore.backends.files import Files

__all__ = ["BOTH", "HEADER", "Log", "raises_storage"]

HEADER = make_header("s", created_at=1)
BOTH: list[Compression] = ["none", "zstd"]


class Log:
    """One session being written, and what must be on the disk."""

    def __init__(self, root: Path, *, compression: Compression = "none", files: Files | None = None) -> None:
        self.files = FaultyFiles() if files is None else files
        self.root = root
        self.compression: Compression = compression
        self.paths = session_paths(str(root), "s", None)
        self.path = Path(self.paths.log(compression))
        self.writer = self.new_writer()
        self.lines: list[bytes] = []  # everything given to the writer so far
        self._runner = asyncio.Runner()

    @property
    def faulty(self) -> FaultyFiles:
        assert isinstance(self.files, FaultyFiles)
        return self.files

    def new_writer(self, **options: str) -> JsonlWriter:
        return JsonlWriter(self.files, self.paths, HEADER, now=lambda: 5, compression=self.compression, **options)

    def batch(self, *parts: int) -> Batch:
        """The next batch: a part of so many lines for each of *parts*.  Its lines count as given."""
        first = len(self.lines)
        out: list[tuple[bytes, ...]] = []
        for size in parts:
            part = tuple(b'{"seq":%d}' % (len(self.lines) + n) for n in range(size))
            self.lines.extend(part)
            out.append(part)
        whole = tuple(self.lines)
        return Batch(first, len(self.lines), tuple(out), lambda: whole)

    def append(self, *parts: int, sync: bool = True) -> None:
        self.give(self.batch(*parts), sync=sync)

    def give(self, batch: Batch, *, sync: bool = True) -> None:
        self._runner.run(self.writer.append(batch, sync=sync))

    def sync(self) -> None:
        self._runner.run(self.writer.sync())

    def close(self) -> None:
        """Close the writer; the log may be used again with another one."""
        self._runner.run(self.writer.close())
        self._runner.close()
        self._runner = asyncio.Runner()

    def text(self) -> bytes:
        """The decoded content of the file."""
        data = self.path.read_bytes()
        if self.compression == "none":
            return data
        reader = FrameReader()
        return b"".join([*reader.feed(data), *reader.finish()])

    def expected(self, count: int | None = None) -> bytes:
        return b"\n".join([HEADER.to_json(), *self.lines[:count], b""])

    def resumed(self) -> JsonlWriter:
        """A writer for the stored log, under a lock of its own."""
        lock = SessionLock(self.files, self.paths.lock, "s", now=lambda: 6)
        lock.acquire()
        return JsonlWriter.resumed(
            self.files,
            self.paths,
            HEADER,
            now=lambda: 6,
            compression=self.compression,
            lock=lock,
            found=self.files.stat(str(self.path)),
            next_seq=len(self.lines),
        )


@contextmanager
def raises_storage(code: int) -> Generator[None]:
    """The block raises a StorageError, alone or in a group, whose first OSError has *code*."""
    with pytest.raises((StorageError, ExceptionGroup)) as caught:
        yield
    error: BaseException = caught.value
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, StorageError)
    assert error.os_error is not None
    assert error.os_error.errno == code
    assert error.session_id == "s"
    assert error.path is not None
