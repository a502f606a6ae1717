"""What the contract suite needs to know about a backend: how to open it, and how to damage what it stored.

Another backend joins by a :class:`Kit` and an entry in :data:`KITS`.
"""

from __future__ import annotations

import glob
import os
from typing import TYPE_CHECKING, Protocol

from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.backends.jsonl.frames import FrameReader, encode_frame
from sessionstore.backends.memory import MemoryBackend
from sessionstore.backends.paths import LOG_NAMES, encode_id

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sessionstore.backends.base import Backend
    from sessionstore.backends.paths import Compression
    from sessionstore.clock import Clock

__all__ = ["KITS", "ByteKit", "Kit", "kit_names", "make_kit"]


class Kit(Protocol):
    """One place where sessions are stored, and the accidents that may happen there."""

    def open(self) -> Backend:
        """A backend on that place; each call stands for another process."""
        ...

    def damage_tail(self, session_id: str) -> None:
        """Leave what a writer leaves that dies in the middle of a write."""
        ...

    def damage_middle(self, session_id: str) -> None:
        """Make the first stored event unreadable; there is a ``turn/end`` after it."""
        ...

    def damage_all(self, session_id: str) -> None:
        """Leave nothing of what was stored but an empty place."""
        ...


class ByteKit:
    """A kit for backends that store a log's text: accidents are edits of the text."""

    def text(self, session_id: str) -> bytes:
        """The log as lines of JSON."""
        raise NotImplementedError

    def put(self, session_id: str, text: bytes) -> None:
        """Replace the log, as somebody would who knows no lock."""
        raise NotImplementedError

    def damage_tail(self, session_id: str) -> None:
        self.put(session_id, self.text(session_id) + b'{"type":"user/message","seq":')

    def damage_middle(self, session_id: str) -> None:
        head, first, *rest = self.text(session_id).split(b"\n")
        self.put(session_id, b"\n".join([head, b"#" * len(first), *rest]))

    def damage_all(self, session_id: str) -> None:
        self.put(session_id, b"")


class MemoryKit(ByteKit):
    def __init__(self, place: Path, clock: Clock) -> None:
        self.backend = MemoryBackend(clock=clock)

    def open(self) -> Backend:
        return self.backend

    def text(self, session_id: str) -> bytes:
        return self.backend.stored_bytes(session_id)

    def put(self, session_id: str, text: bytes) -> None:
        self.backend.put_bytes(session_id, text)


class JsonlKit(ByteKit):
    compression: Compression = "none"

    def __init__(self, place: Path, clock: Clock) -> None:
        self.root = os.fspath(place / "sessions")
        self.clock = clock

    def open(self) -> Backend:
        return JsonlBackend(self.root, compression=self.compression, clock=self.clock)

    def path(self, session_id: str) -> str:
        (found,) = glob.glob(os.path.join(self.root, "*", encode_id(session_id), LOG_NAMES[self.compression]))
        return found

    def text(self, session_id: str) -> bytes:
        with open(self.path(session_id), "rb") as file:
            return file.read()

    def put(self, session_id: str, text: bytes) -> None:
        with open(self.path(session_id), "r+b") as file:
            file.truncate(0)
            file.write(text)


class ZstdKit(JsonlKit):
    compression: Compression = "zstd"

    def text(self, session_id: str) -> bytes:
        reader = FrameReader()
        return b"".join(reader.feed(super().text(session_id)))

    def put(self, session_id: str, text: bytes) -> None:
        head, newline, rest = text.partition(b"\n")
        frames = [encode_frame(head + newline) if head else b"", encode_frame(rest) if rest else b""]
        super().put(session_id, b"".join(frames))

    def damage_tail(self, session_id: str) -> None:
        frame = encode_frame(b'{"type":"user/message","seq":100,"time":0,"data":{}}\n')
        with open(self.path(session_id), "ab") as file:
            file.write(frame[:-7])


KITS: dict[str, Callable[[Path, Clock], Kit]] = {"memory": MemoryKit, "jsonl": JsonlKit, "jsonl+zstd": ZstdKit}


def kit_names() -> list[str]:
    """The kits to run on: those whose backend is named in the environment variable BACKENDS."""
    wanted = os.environ.get("BACKENDS", "memory,jsonl").split(",")
    return [name for name in KITS if name.partition("+")[0] in wanted]


def make_kit(name: str, place: Path, clock: Clock | None = None) -> Kit:
    """A kit on an empty place."""
    return KITS[name](place, clock or (lambda: 1_700_000_000_000))
