"""Making text safe to print.

What a log holds was written by models, tools and web pages.  Printed as it is, it
could move the cursor, retitle the window, answer on the user's behalf or, with
bidirectional overrides, show something else than it says.
"""

from __future__ import annotations

import re
from typing import Final

__all__ = ["one_line", "visible"]

# C0 but tab and newline, DEL, C1; line and paragraph separators; bidirectional overrides, embeddings and
# isolates (plain right-to-left text needs none of them; the two marks U+200E and U+200F stay); tag characters
# and the byte order mark (invisible); halves of surrogate pairs, which no terminal can be sent.
_UNSAFE: Final = re.compile(
    "[\\x00-\\x08\\x0b-\\x1f\\x7f-\\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ufeff\U000e0000-\U000e007f\ud800-\udfff]"
)


def visible(text: str) -> str:
    """*text* with everything that a terminal would act on made visible.  Newlines and tabs stay, CRLF becomes LF."""
    return _UNSAFE.sub(_picture, text.replace("\r\n", "\n"))


def one_line(text: str, limit: int | None = None) -> str:
    """*text* safe, on one line, runs of white space as one blank, cut to *limit* characters with an ellipsis."""
    if limit is not None:
        text = text[: limit * 8 + 64]  # enough to fill the line however much white space there is
    line = visible(" ".join(text.split()))
    return line if limit is None or len(line) <= limit else line[: max(0, limit - 1)] + "…"


def _picture(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x20:
        return chr(0x2400 + code)  # the pictures of control characters: U+241B is the one of escape
    if code == 0x7F:
        return "\u2421"
    if 0xD800 <= code <= 0xDFFF:
        return "\ufffd"
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
