"""docs/conformance.md covers every case of the reference's checklist with a test that exists, or says why not."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.ids import defined_tests
from tests.paths import REPO, SHARED

PAGE = (REPO / "docs" / "conformance.md").read_text(encoding="utf-8")
CHECKLIST = SHARED / "spec" / "checklist.md"
# How many cases the checklist has per theme.
CASES = {
    "A": 14, "B": 9, "C": 25, "D": 13, "E": 24, "F": 11, "G": 18, "H": 3, "I": 5, "J": 9, "K": 7,
    "M": 10, "N": 18, "P": 6, "Q": 14, "R": 7, "T": 4,
}  # fmt: skip
# Pages that may decide otherwise.
SPEC = ("vocabulary.md", "session.md", "format.md", "recovery.md", "store.md")


def sections() -> dict[str, str]:
    """The page's sections by their letter."""
    parts = re.split(r"^## ([A-Z])\. ", PAGE, flags=re.MULTILINE)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def rows(section: str) -> dict[str, str]:
    """The cases of a section: number -> what it is shown by."""
    return {
        match[1]: match[2] for match in re.finditer(r"^\| ([A-Z]\d+) \| [^|]+ \| (.+) \|$", section, flags=re.MULTILINE)
    }


def named_tests() -> dict[str, list[str]]:
    """Every case with the full ids of its tests."""
    found: dict[str, list[str]] = {}
    for section in sections().values():
        default = re.search(r"^Tests: `([^`]+)`", section, flags=re.MULTILINE)
        assert default is not None
        for case, shown_by in rows(section).items():
            ids = re.findall(r"`((?:tests/[\w/]+\.py)?::\w+)`", shown_by)
            found[case] = [default[1] + id_ if id_.startswith("::") else id_ for id_ in ids]
    return found


@pytest.mark.parametrize("theme", CASES)
def test_every_case_has_a_row(theme: str) -> None:
    """The rows of a theme are numbered without a gap, as many as the checklist has."""
    assert list(rows(sections()[theme])) == [f"{theme}{k}" for k in range(1, CASES[theme] + 1)]


def test_the_numbers_are_those_of_the_checklist() -> None:
    """Counted again where the checklist is at hand."""
    if not CHECKLIST.is_file():
        pytest.skip(f"the checklist is not at {CHECKLIST}")
    counts: dict[str, int] = {}
    theme = ""
    for line in CHECKLIST.read_text(encoding="utf-8").splitlines():
        if line.startswith("## "):
            theme = line[3]
        elif line.startswith("- "):
            counts[theme] = counts.get(theme, 0) + 1
    assert {theme: counts[theme] for theme in CASES} == CASES


def test_every_case_is_tested_or_says_why_not() -> None:
    """A reason for "not applicable" names the page that decides otherwise, or what Python does not have."""
    for section in sections().values():
        for case, shown_by in rows(section).items():
            if shown_by.startswith("not applicable: "):
                reason = shown_by.removeprefix("not applicable: ")
                assert any(page in reason for page in SPEC) or "Python" in reason or "as E6" in reason, case
            else:
                assert re.fullmatch(r"(`(tests/[\w/]+\.py)?::test_\w+` ?)+", shown_by), f"{case}: {shown_by}"


@pytest.mark.parametrize(("case", "ids"), named_tests().items(), ids=named_tests().keys())
def test_the_tests_of_a_case_exist(case: str, ids: list[str]) -> None:
    """Every id is a function in the file that it names."""
    for id_ in ids:
        file, _, name = id_.partition("::")
        assert name in defined_tests(file), f"{case} names {id_}"


@pytest.mark.slow
def test_the_tests_are_collected() -> None:
    """Pytest itself finds every one of them."""
    wanted = {id_ for ids in named_tests().values() for id_ in ids}
    files = sorted({id_.partition("::")[0] for id_ in wanted})
    result = subprocess.run(
        [sys.executable, "-m", "pytest", "--collect-only", "-q", "-p", "no:randomly", *files],
        cwd=REPO,
        capture_output=True,
        text=True,
        check=False,
    )
    collected = {line.partition("[")[0] for line in result.stdout.splitlines() if "::" in line}
    assert wanted - collected == set(), result.stdout[-2000:] + result.stderr[-2000:]
