"""How many events a packed row holds, found out without making one of them.

A load checks every row strictly and keeps its bytes; its members are made when
somebody looks at them.  So the checks are made on the text, after one decode that
proves it to be JSON of the right outline.  Whatever is unusual is read in full.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec
from msgspec import UNSET, Raw, Struct, UnsetType

from sessionstore.chunks import parse_row
from sessionstore.lossless import MAX_SAFE

__all__ = ["measure_row"]

_LONGEST_GAP: Final = 10**9
"""More than any gap of nine digits.  Where all are such gaps, a bound on the running times needs no look at each."""


class _TextSize(Struct, forbid_unknown_fields=True, gc=False):
    turn: int
    step: int
    index: int
    dt: Raw
    texts: Raw


class _TextOutline(Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["text-chunks", "reasoning-chunks"]
    seq0: int
    time0: int
    data: _TextSize


class _ToolSize(Struct, forbid_unknown_fields=True, gc=False):
    turn: int
    step: int
    index: int
    dt: Raw
    id: str
    args: Raw
    name: str | UnsetType = UNSET


class _ToolOutline(Struct, forbid_unknown_fields=True, gc=False):
    type: Literal["tool-call-chunks"]
    seq0: int
    time0: int
    data: _ToolSize


_text_outline: Final = msgspec.json.Decoder(_TextOutline).decode
_tool_outline: Final = msgspec.json.Decoder(_ToolOutline).decode


def measure_row(line: bytes) -> tuple[int, int]:
    """Check the packed row *line* strictly and return its first seq and its number of members.

    The hot loop of a load: no member is built, nothing is kept.

    Raises:
        InvalidEventError: the line is not a valid row.
        UnicodeDecodeError: it is not UTF-8.
    """
    try:
        if line.startswith(b'{"type":"tool-call-chunks"'):
            tool = _tool_outline(line)
            seq0, time0, count, gaps = tool.seq0, tool.time0, _count_strings(tool.data.args), _count_gaps(tool.data.dt)
        else:
            text = _text_outline(line)
            seq0, time0, count, gaps = text.seq0, text.time0, _count_strings(text.data.texts), _count_gaps(text.data.dt)
    except msgspec.MsgspecError:
        count = seq0 = time0 = gaps = 0
    usual = 0 < count == gaps + 1 and 0 <= seq0 <= MAX_SAFE - count and abs(time0) + count * _LONGEST_GAP <= MAX_SAFE
    if usual and (line.isascii() or line.decode()):
        return seq0, count
    row = parse_row(line)
    return row.seq0, len(row)


def _count_strings(array: Raw) -> int:
    """How many strings a JSON array holds, without making them; 0 for "not sure that it is one of strings only".

    The text is valid JSON.  Where all of its quotes but the outer two stand in ``","``, there is nothing in it but
    strings and the commas between them.
    """
    text = bytes(array)
    if b"\\" in text:  # escaped backslashes first: what remains of a run of them decides about the quote behind it
        text = text.replace(b"\\\\", b"").replace(b'\\"', b"")
    if not (text.startswith(b'["') and text.endswith(b'"]')):
        return 0
    count = text.count(b'","', 2, len(text) - 2) + 1
    return count if text.count(b'"') == 2 * count else 0


def _count_gaps(array: Raw) -> int:
    """How many usual time gaps a JSON array holds, without making them; -1 for "not sure that it holds only those"."""
    text = bytes(array)
    rest = text.translate(None, b"0123456789")
    count = len(rest) - 1
    if rest != b"[%b]" % (b"," * (count - 1)):
        return -1
    digits = len(text) - len(rest)
    if digits > count + 8 and b"0000000000" in text.translate(_AS_ZERO):
        return -1  # ten digits: rare, and not to be ruled out by how few there are
    return count if digits else 0


_AS_ZERO: Final = bytes.maketrans(b"123456789", b"000000000")
