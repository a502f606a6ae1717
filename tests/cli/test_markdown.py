"""Markdown keeps what a log holds in its place; a real CommonMark parser is the judge."""

from __future__ import annotations

import json
import re

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt  # rich needs it, so it is there

from sessionstore import Event
from sessionstore.transcript import build_transcript
from sessionstore.transcript.markdown import render_markdown
from tests.cli.logs import Log

OURS = re.compile(r'</?details>|</?summary>|</?code>|<a id="e\d+">|</a>')
SOUP = st.text("`~<b> \n\\-1.x>", max_size=40) | st.text(max_size=40)


def rendered(user: str, assistant: str, result: str) -> str:
    """The Markdown of a session in which these three were said."""
    log = Log()
    log.begin(user)
    log.steps()
    log.say(assistant, ("c", "run", {"x": result}), reasoning=assistant)
    log.use("c", "run", {"x": result}, result)
    log.done()
    log.end()
    events = [Event.from_json(json.dumps(event)) for event in log.events]
    return "\n".join(render_markdown(build_transcript("x", events))) + "\n"


def html_in(text: str) -> list[str]:
    """Every piece of raw HTML that a CommonMark reader finds in *text*."""
    tokens = MarkdownIt("commonmark").parse(text)
    inline = [child for token in tokens for child in token.children or () if child.type == "html_inline"]
    return [token.content for token in [*tokens, *inline] if token.type in {"html_block", "html_inline"}]


@pytest.mark.slow
@settings(max_examples=40)
@given(SOUP, SOUP, SOUP)
@example("", "- ```\n  x\n  ```\nafter <b>", "")
@example("", "a ` b\nc ` <b> ` d", "")
@example("", "```a`b\n<b>\n", "")
@example("", "1. a\n   ```\n   code\nafter <b>", "")
@example("<b>", "\\`<b>`", "````\n<b>")
def test_no_text_becomes_html(user: str, assistant: str, result: str) -> None:
    """The only tags in a rendering are ours, and all folds are closed again, whatever was said."""
    found = html_in(rendered(user, assistant + " <b>x</b>", result + "\n```\n<i>y</i>"))
    assert not [piece for piece in found if "<" in OURS.sub("", piece)]
    joined = "".join(found)
    assert joined.count("<details>") == joined.count("</details>") == 2


def test_code_keeps_its_angle_brackets() -> None:
    """Where there is no doubt what is code it stays as it was written."""
    text = rendered("hi", "use `Vec<T>` or\n\n```rust\nVec<T>\n```\n\nand Vec<T>", "r")
    assert "`Vec<T>`" in text
    assert "\nVec<T>\n" in text
    assert "and Vec&lt;T>" in text


def test_a_fence_that_is_left_open_is_closed() -> None:
    """What follows an unclosed fence is still Markdown of ours."""
    assert "<details>" in "".join(html_in(rendered("hi", "look:\n```python\nprint(1)", "r")))


def test_a_result_with_fences_stands_in_a_longer_fence() -> None:
    """A result that is Markdown itself cannot end its block."""
    text = rendered("hi", "ok", "````\n<script>\n````")
    assert "`````\n````\n<script>\n````\n`````" in text
