"""Names and limits of the log format (version 0): the only place where they are written down."""

from __future__ import annotations

from typing import Final

from sessionstore.lossless import MAX_EVENT_BYTES, MAX_SAFE

__all__ = [
    "FORMAT_VERSION",
    "HEADER_TYPE",
    "MAX_BATCH_TEXT",
    "MAX_EVENT_BYTES",
    "MAX_LINE",
    "MAX_SAFE",
    "RECOVERY_LOST",
    "TURN_END",
    "TURN_START",
]

FORMAT_VERSION: Final = 0
"""The one version this library writes and reads; it changes only when an old reader would misread."""

HEADER_TYPE: Final = "session"
"""``type`` of the first line."""

TURN_START: Final = "turn/start"
TURN_END: Final = "turn/end"
RECOVERY_LOST: Final = "recovery/lost"

MAX_BATCH_TEXT: Final = 64 * 1024 * 1024
"""Most bytes of text that one write holds beyond its first event."""

MAX_LINE: Final = MAX_EVENT_BYTES + MAX_BATCH_TEXT
"""The longest line the scanner accepts, without its newline: a packed row may hold all that one write holds."""
