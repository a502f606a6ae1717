"""Sessions as files: one append-only file of JSON lines each."""

from __future__ import annotations

from sessionstore.backends.jsonl.backend import JsonlBackend

__all__ = ["JsonlBackend"]
