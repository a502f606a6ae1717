"""A transcript as one HTML file that needs nothing else.

Nothing in a log can run or load anything: its text travels as JSON in a data block, in
which no ``<`` occurs, and becomes text nodes only; the page's policy allows one script
and one style sheet, both named by their hash, and no connections at all.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from functools import cache
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Final

import msgspec

from sessionstore.transcript.visible import one_line

if TYPE_CHECKING:
    from sessionstore.transcript.model import Transcript

__all__ = ["render_html"]

_SCRIPTS: Final = ("dom.js", "charts.js", "entries.js", "app.js")


def render_html(transcript: Transcript) -> str:
    """*transcript* as one self-contained page."""
    style, script = _asset("page.css"), _script()
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src '{_hash(script)}'",
            f"style-src '{_hash(style)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return Template(_asset("page.html")).substitute(
        csp=html.escape(policy),
        title=html.escape(one_line(transcript.title or f"Session {transcript.id}", 120)),
        style=style,
        script=script,
        data=_embedded(transcript),
    )


@cache
def _asset(name: str) -> str:
    return files("sessionstore.transcript").joinpath("assets", name).read_text(encoding="utf-8")


@cache
def _script() -> str:
    parts = "\n".join(_asset(name) for name in _SCRIPTS)
    return f'"use strict";\n(() => {{\n{parts}\n}})();'


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(transcript: Transcript) -> str:
    """The data as ASCII JSON in which nothing can end a script element or open a comment.

    Not ``msgspec.json.encode``: lone surrogates are legal in a log, and it refuses them.
    """
    text = json.dumps(msgspec.to_builtins(transcript), ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
