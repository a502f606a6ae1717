"""``sessionstore du`` and what no list shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Result

DEMO = "demo-0198c0de"


def test_du_counts_what_crashes_left_and_trash_empty_removes_it(run: Callable[..., Result], root: Path) -> None:
    """A file of a session that never came to be takes space that no list shows."""
    assert run("du", "--json").json()["leftovers"] == {"files": 0, "bytes": 0}
    (root / "_no-cwd" / "unborn").mkdir(parents=True)
    (root / "_no-cwd" / "unborn" / "session.tmp-0123456789abcdef").write_bytes(b"x" * 100)
    (root / "--srv-project--" / DEMO / "session.tmp-0123456789abcdef").write_bytes(b"x" * 1000)
    found = run("du", "--json").json()
    assert found["leftovers"] == {"files": 1, "bytes": 100}
    assert sum(row["beside"] for row in found["rows"]) == 1000
    assert "left behind by crashes, or being made now: 100 B in 1 file" in run("du").out
    assert "unborn" not in run("ls").out
    run("trash", "empty", "--yes")
    found = run("du", "--json").json()
    assert found["leftovers"] == {"files": 0, "bytes": 0}
    assert sum(row["beside"] for row in found["rows"]) == 0
