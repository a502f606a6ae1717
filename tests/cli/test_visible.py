"""Nothing that a log holds reaches a terminal as an instruction."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.cli.terminal import json_text
from sessionstore.transcript.visible import one_line, visible

ANY_TEXT = st.text(
    st.characters(codec=None, exclude_categories=()) | st.sampled_from("\x1b\x9b\x07\r\n\t\u202e\u2066\ud83d")
)
HARMLESS = {"\n", "\t"}


def acts(text: str) -> set[str]:
    """The characters in *text* that a terminal would act on."""
    return {c for c in text if unicodedata.category(c) in {"Cc", "Cs", "Zl", "Zp"} and c not in HARMLESS} | (
        set(text) & set("\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\ufeff")
    )


@given(ANY_TEXT)
def test_visible_text_has_nothing_to_act_on(text: str) -> None:
    """Whatever goes in, no control character, separator, override or half of a pair comes out."""
    assert not acts(visible(text))
    assert not acts(one_line(text, 80))
    visible(text).encode()


@given(ANY_TEXT, st.integers(1, 200))
def test_one_line_is_one_line(text: str, limit: int) -> None:
    """No newline, and no more characters than asked for."""
    line = one_line(text, limit)
    assert "\n" not in line
    # Pictures of several characters may be cut in the middle, but nothing is added behind the limit.
    assert len(line) <= limit


@given(ANY_TEXT)
def test_json_for_scripts_is_safe_and_exact(text: str) -> None:
    """JSON output has nothing to act on and reads back as it was."""
    written = json_text({"text": text})
    assert not acts(written)
    assert json.loads(written) == {"text": text}


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("\x1b]0;pwned\x07", "\u241b]0;pwned\u2407"),
        ("\x9b2J", "\\x9b2J"),
        ("a\r\nb\rc", "a\nb\u240dc"),
        ("\u202eevil", "\\u202eevil"),
        ("مرحبا 中文 e\u0301", "مرحبا 中文 e\u0301"),
        ("\ud83d", "\ufffd"),
    ],
)
def test_controls_become_pictures_and_text_stays(raw: str, shown: str) -> None:
    """Escapes are shown, right-to-left text, wide characters and combining marks are left alone."""
    assert visible(raw) == shown
