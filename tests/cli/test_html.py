"""The HTML transcript as a file: self-contained, and closed against whatever a log holds."""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sessionstore import Event
from sessionstore.transcript import build_transcript
from sessionstore.transcript.html import render_html
from tests.cli.logs import Log, demo


class Page(HTMLParser):
    """The parts of a page that matter here."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": [], "title": []}
        self._inside: str | None = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self._inside = tag if tag in self.raw else None
        if self._inside is not None:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = None

    def handle_data(self, data: str) -> None:
        if self._inside is not None:
            self.raw[self._inside][-1] += data

    @property
    def data(self) -> Any:
        """The embedded transcript."""
        return json.loads(self.raw["script"][0])


def page_of(*texts: str) -> str:
    """The page of a session in which *texts* stand everywhere."""
    log = Log("x")
    for text in texts:
        log.begin(text)
        log.add("session/title", {"title": text, "messageSeqs": [], "source": {"kind": "user"}})
        log.steps()
        log.say(text, (text, text, {text: text}), reasoning=text)
        log.use(text, text, {text: text}, text)
        log.done()
        log.end(text, reason=text)
    events = [Event.from_json(json.dumps(event)) for event in log.events]
    return render_html(build_transcript("x", events))


BARE = [(tag, attributes) for tag, attributes in Page(page_of("plain")).tags if tag != "meta"]
HOSTILE = st.lists(st.sampled_from(["</script>", "<script>", "<!--", "-->", "]]>", "&lt;", '"', "'", "\\", "\u2028", "\ud83d", "\x00", "x", "<img src=x onerror=alert(1)>"]), max_size=6).map("".join)  # fmt: skip


@pytest.mark.slow
@settings(max_examples=40)
@given(HOSTILE)
def test_no_text_changes_the_structure_of_the_page(text: str) -> None:
    """The elements of the page are the same whatever was said, and the text arrives as it was."""
    page = Page(page_of(text))
    assert [(tag, attributes) for tag, attributes in page.tags if tag != "meta"] == BARE
    assert len(page.raw["script"]) == 2
    assert page.data["entries"][1]["fragments"][0]["text"] == text


def test_the_policy_allows_one_script_one_style_and_nothing_else() -> None:
    """Both are named by their hash; no host, no inline handler, no form, no frame is allowed."""
    text = render_html(build_transcript("x", []))
    page = Page(text)
    policy = next(a["content"] for tag, a in page.tags if tag == "meta" and a.get("http-equiv"))
    assert policy is not None

    def digest(part: str) -> str:
        return "sha256-" + base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()

    style, script = page.raw["style"][0], page.raw["script"][1]
    assert policy.split("; ") == [
        "default-src 'none'",
        f"script-src '{digest(script)}'",
        f"style-src '{digest(style)}'",
        "base-uri 'none'",
        "form-action 'none'",
    ]


def test_the_page_needs_nothing_else() -> None:
    """No element names a file or a host, and neither style nor script loads one."""
    page = Page(render_html(build_transcript("x", [])))
    for tag, attributes in page.tags:
        assert not {"src", "srcset", "data", "action"} & set(attributes), tag
        assert attributes.get("href") in {None, "#talk"}
        assert not [name for name in attributes if name.startswith("on") or name == "style"], tag
    script, style = page.raw["script"][1], page.raw["style"][0]
    assert "url(" not in style
    assert "@import" not in style
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "XMLHttpRequest",
        "import(",
    ):
        assert word not in script


def test_the_title_is_escaped() -> None:
    """The one text that stands in the markup itself."""
    text = page_of("</title><b>")
    assert html.escape("</title><b>") in text
    assert re.search(r"<title>[^<]*</title>", text)


def test_the_demo_is_embedded_whole() -> None:
    """What the page gets is the transcript, field by field."""
    events = [Event.from_json(json.dumps(event)) for event in demo().events]
    data = Page(render_html(build_transcript("demo", events))).data
    assert [turn["ended"] for turn in data["turns"]] == ["completed", "interrupted", "aborted"]
    assert data["usage"]["output"] == 614
    assert {entry["tool"]["outcome"] for entry in data["entries"] if "tool" in entry} == {
        "ok",
        "error",
        "unknown",
        "not-started",
    }
