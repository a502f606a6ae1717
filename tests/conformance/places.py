"""Where sessions are stored, and what a test does there behind the store's back."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

from sessionstore import SessionStore
from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.backends.memory import MemoryBackend

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sessionstore.backends.base import Backend


class Place(ABC):
    """A backend that outlives the stores that are opened on it."""

    @abstractmethod
    def backend(self) -> Backend:
        """The backend for one more store: another process, as far as locks go."""

    @abstractmethod
    def read(self, session_id: str) -> bytes:
        """The log as plain JSON lines."""

    @abstractmethod
    def write(self, session_id: str, data: bytes) -> None:
        """Put a log there, or change one, without a lock."""

    def store(self, **options: Any) -> SessionStore:
        """A store on this place."""
        return SessionStore(backend=self.backend(), **options)

    def append(self, session_id: str, data: bytes) -> None:
        """Add bytes at the end, as a torn write or a foreign writer does."""
        self.write(session_id, self.read(session_id) + data)


class Memory(Place):
    """One dictionary for all stores."""

    def __init__(self, folder: Path) -> None:
        self._backend = MemoryBackend()

    def backend(self) -> Backend:
        """The one backend: its locks are local to it."""
        return self._backend

    def read(self, session_id: str) -> bytes:
        """What the dictionary holds."""
        return self._backend.stored_bytes(session_id)

    def write(self, session_id: str, data: bytes) -> None:
        """Replace what the dictionary holds."""
        self._backend.put_bytes(session_id, data)


class Jsonl(Place):
    """A folder of JSONL logs, uncompressed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "sessions"

    def backend(self) -> Backend:
        """A backend of its own per store."""
        return JsonlBackend(self.root)

    def path(self, session_id: str) -> Path:
        """The log of a session, whatever its project."""
        found = list(self.root.glob(f"*/{session_id}/session.jsonl"))
        return found[0] if found else self.root / "_no-cwd" / session_id / "session.jsonl"

    def read(self, session_id: str) -> bytes:
        """The bytes of the file."""
        return self.path(session_id).read_bytes()

    def write(self, session_id: str, data: bytes) -> None:
        """Write the file in place, keeping its inode."""
        path = self.path(session_id)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


PLACES: dict[str, Callable[[Path], Place]] = {"memory": Memory, "jsonl": Jsonl}
