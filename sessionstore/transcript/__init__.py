"""A session as a person reads it.

``build_transcript`` turns events into a neutral :class:`Transcript`; ``render_markdown``,
``render_html`` and ``render_text`` show it, ``redact`` takes secrets out of it, and
``count`` computes what it cost.  Nothing here reads files or terminals.
"""

from sessionstore.transcript.build import TranscriptBuilder, build_transcript
from sessionstore.transcript.model import Entry, Fragment, Span, ToolUse, Transcript, Turn, Usage

__all__ = [
    "Entry",
    "Fragment",
    "Span",
    "ToolUse",
    "Transcript",
    "TranscriptBuilder",
    "Turn",
    "Usage",
    "build_transcript",
]
