"""Names of files: injective where they must be, inside the root always."""

from __future__ import annotations

import hashlib
import os

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sessionstore.backends.paths import (
    LOCK_NAME,
    LOG_NAMES,
    decode_segment,
    encode_id,
    is_temp_name,
    lock_name,
    names_of,
    project_name,
    quarantine_name,
    session_paths,
    temp_name,
)
from sessionstore.errors import InvalidEventError

# Any string, lone surrogates and control characters included.
TEXT = st.text(st.characters(exclude_categories=()), min_size=1)
IDS = TEXT | st.text("./~\\: aA~0\x00\ud800\U0001f600", min_size=1) | st.text("aé/", min_size=150, max_size=400)


def same_json(text: str) -> bytes:
    """What a JSON reader makes of *text*: a surrogate pair is its character."""
    return text.encode("utf-16-be", "surrogatepass")


@pytest.mark.parametrize(
    ("cwd", "name"),
    [
        ("/", "--root--"),
        ("C:\\work\\agent", "--C-work-agent--"),
        ("/开发/~agent", "--~5F00~53D1-~007Eagent--"),
        (None, "_no-cwd"),
        ("", "--root--"),
        ("//-/", "--root--"),
        ("/-foo", "--foo--"),
        ("/a/-/b", "--a---b--"),
        ("/a:b/", "--a-b---"),
        ("/a😀", "--a~D83D~DE00--"),
        ("/a\ud800", "--a~D800--"),
        ("/" + "a" * 300, "--" + "a" * 251 + "--"),
        ("/_no-cwd", "--_no-cwd--"),
    ],
)
def test_project_names(cwd: str | None, name: str) -> None:
    """The readable name follows the reference implementation unit by unit."""
    assert project_name(cwd) == name


@given(TEXT | st.just(""))
def test_a_project_name_is_one_segment(cwd: str) -> None:
    """Whatever the working directory is called, its name is a plain name of at most 255 bytes."""
    name = project_name(cwd)
    assert os.path.basename(name) == name
    assert name.isascii()
    assert name.startswith("--")
    assert len(name) <= 255


@pytest.mark.parametrize(
    ("session_id", "segment"),
    [
        ("a", "a"),
        (".", "~002E"),
        ("..", "~002E~002E"),
        ("...", "..."),
        (".hidden", ".hidden"),
        ("../x", "..~002Fx"),
        ("/abs", "~002Fabs"),
        ("a:b", "a~003Ab"),
        ("a//b\\", "a~002F~002Fb~005C"),
        ("a\0b", "a~0000b"),
        ("~", "~007E"),
        ("%41 b", "~002541~0020b"),
        ("😀", "~D83D~DE00"),
        ("\ud800x", "~D800x"),
        ("x" * 200, "x" * 200),
        ("x" * 201, "x" * 160 + "~~" + hashlib.sha256(b"x" * 201).hexdigest()[:32]),
    ],
)
def test_session_directories(session_id: str, segment: str) -> None:
    """The same alphabet, nothing collapsed, long ids shortened with a hash."""
    assert encode_id(session_id) == segment


def test_the_empty_id_is_an_error() -> None:
    """There is no directory for it."""
    with pytest.raises(InvalidEventError):
        encode_id("")


@given(IDS)
def test_no_id_leaves_its_project(session_id: str) -> None:
    """The directory of any id is one new name of at most 200 bytes below the project."""
    paths = session_paths("/root", session_id, "/w")
    assert os.path.normpath(paths.directory) == paths.directory
    assert os.path.dirname(paths.directory) == paths.project == "/root/--w--"
    assert len(os.path.basename(paths.directory)) <= 200
    assert os.path.basename(paths.directory).isascii()


@given(IDS, IDS)
@example("a/b", "a~002Fb")
@example(".", "~002E")
@example("\ud800", "~D800")
@example("a", "A")
def test_two_ids_never_share_a_directory(one: str, other: str) -> None:
    """The encoding is injective, up to what is the same JSON string."""
    assert (encode_id(one) == encode_id(other)) == (same_json(one) == same_json(other))


@given(st.text("é", min_size=30, max_size=60).map(lambda tail: "x" * 160 + tail), st.integers(0, 59))
def test_long_ids_that_differ_late_are_told_apart(session_id: str, at: int) -> None:
    """A difference behind the part that is kept is in the hash."""
    at = 160 + at % (len(session_id) - 160)
    other = session_id[:at] + "è" + session_id[at + 1 :]
    assert encode_id(session_id) != encode_id(other)


@given(IDS)
def test_a_directory_name_gives_back_its_id(session_id: str) -> None:
    """Where nothing was shortened the id can be read from the name."""
    segment = encode_id(session_id)
    found = decode_segment(segment)
    if "~~" in segment:
        assert found is None
    else:
        assert found is not None
        assert same_json(found) == same_json(session_id)


@given(st.text("ab~0123DEF./é"))
@example("~002f")
@example("~0041")
@example("~002")
@example("")
@example(".")
@example("~D83D~DE00")
def test_a_name_that_is_not_ours_gives_no_id(segment: str) -> None:
    """Only a name that encoding would make is decoded."""
    found = decode_segment(segment)
    assert found is None or segment in names_of(found)


@pytest.mark.parametrize(
    ("session_id", "whole"),
    [("a" * 200, 200), ("a" * 201, 201), ("é" * 51, 255), ("é" * 51 + "a", None), ("a" * 300, None)],
)
def test_a_long_name_that_the_reference_writes_gives_back_its_id(session_id: str, whole: int | None) -> None:
    """It does not shorten; where a file system takes the whole name, a session may lie under it."""
    *_, last = names_of(session_id)
    assert (len(last) if whole else last) == (whole or encode_id(session_id))
    assert decode_segment(last) == (session_id if whole else None)


def test_the_files_of_a_session() -> None:
    """The layout of the format."""
    paths = session_paths("/root", "s/1", None)
    assert paths.directory == "/root/_no-cwd/s~002F1"
    assert paths.log("none") == "/root/_no-cwd/s~002F1/session.jsonl"
    assert paths.log("zstd") == "/root/_no-cwd/s~002F1/session.jsonl.zstd"
    assert paths.lock == "/root/_no-cwd/s~002F1/session.lock"
    assert paths.index == "/root/_no-cwd/s~002F1/session.index"
    assert quarantine_name(12, "0123456789abcdef") == "session.jsonl.cut-12-0123456789ab"


def test_temporary_names_are_recognised() -> None:
    """No name that a session needs looks like one to be removed."""
    assert is_temp_name(temp_name("0f"))
    kept = [*LOG_NAMES.values(), LOCK_NAME, "session.index", quarantine_name(1, "0" * 64), "session.jsonl.damaged-1"]
    assert not any(map(is_temp_name, kept))


@given(IDS, IDS, st.sampled_from(["/r", "/r/s"]), st.sampled_from([None, "/r", "/w"]))
def test_locks_in_one_directory_do_not_meet(one: str, other: str, root: str, cwd: str | None) -> None:
    """In a shared lock directory another root, project or id has another lock, and the name fits."""
    first = lock_name(session_paths("/r", one, "/w").directory)
    second = lock_name(session_paths(root, other, cwd).directory)
    same = (root, cwd, encode_id(other)) == ("/r", "/w", encode_id(one))
    assert (first == second) == same
    assert len(first) <= 255
