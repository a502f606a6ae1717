"""What the documents say is true: code runs, examples scan, links lead somewhere, tests exist."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sessionstore import scan_log
from tests.ids import missing_tests
from tests.paths import REPO

if TYPE_CHECKING:
    from pathlib import Path

README = (REPO / "README.md").read_text(encoding="utf-8")
DOCUMENTS = sorted([*REPO.glob("*.md"), *(REPO / "docs").rglob("*.md")])


def blocks(text: str, language: str) -> list[str]:
    """The fenced blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)


@pytest.mark.slow
@pytest.mark.parametrize("code", blocks(README, "python"), ids=["first screen", "agent", "sync"])
def test_the_code_of_the_readme_runs(code: str, tmp_path: Path) -> None:
    """Each block is a program of its own and ends without an error."""
    env = {**os.environ, "HOME": str(tmp_path), "PYTHONWARNINGS": "error"}
    result = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env=env, capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    assert list(tmp_path.rglob("session.jsonl"))


def test_the_first_program_of_the_readme_is_about_ten_lines() -> None:
    """Who opens the page sees at once what it is like."""
    first = blocks(README, "python")[0]
    inside = [line for line in first.splitlines() if line.strip() and not line.startswith(("import", "from"))]
    assert len(inside) <= 10


def test_the_example_of_the_format_page_is_a_log() -> None:
    """The worked example scans clean, with as many events as the page says."""
    (log,) = blocks((REPO / "docs" / "format.md").read_text(encoding="utf-8"), "jsonl")
    scan = scan_log(log.encode())
    assert scan.verdict == "clean"
    assert len(scan.events) == 11
    assert scan.events[5].time - scan.events[3].time == 39


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPO).as_posix())
def test_links_lead_somewhere(document: Path) -> None:
    """Every relative link of a document names a file that exists, and every anchor a heading."""
    text = document.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = document if not name else (document.parent / name)
        assert linked.exists(), f"{document.name} links to {target}"
        if anchor:
            headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
            assert anchor in slugs, f"{document.name} links to {target}"


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(REPO).as_posix())
def test_named_tests_exist(document: Path) -> None:
    """A guarantee that names a test names one that is there."""
    assert missing_tests(document.read_text(encoding="utf-8")) == []


def test_the_guarantees_name_their_tests() -> None:
    """The three guarantees on the first screen each point at a test."""
    first_screen = README.split("```python")[0]
    assert len(re.findall(r"`tests/[\w/]+\.py::\w+`", first_screen)) >= 3


def test_every_decision_is_in_the_list_and_has_its_four_parts() -> None:
    """A note says the problem, the decision, the alternatives and the consequences, and can be found."""
    folder = REPO / "docs" / "decisions"
    notes = sorted(path.name for path in folder.glob("0*.md"))
    assert re.findall(r"\]\((0[^)]+)\)", (folder / "README.md").read_text(encoding="utf-8")) == notes
    for note in notes:
        headings = re.findall(r"^## (.+)$", (folder / note).read_text(encoding="utf-8"), re.MULTILINE)
        assert headings == ["Problem", "Decision", "Alternatives considered", "Consequences"], note
