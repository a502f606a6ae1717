"""The example agent and the demo do what the README says of them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from sessionstore import scan_log
from tests.paths import REPO

if TYPE_CHECKING:
    from pathlib import Path

    from sessionstore import Event

EXAMPLES = REPO / "examples"


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A copy of the example's workspace."""
    shutil.copytree(EXAMPLES / "workspace", tmp_path / "workspace")
    return tmp_path / "workspace"


def agent(workspace: Path, *arguments: str) -> list[str]:
    """The command line of the agent."""
    return [sys.executable, str(EXAMPLES / "agent.py"), "--root", str(workspace.parent / "root"), *arguments]


def logged(workspace: Path) -> list[Event]:
    """The events of the one session; its log is clean."""
    (log,) = (workspace.parent / "root").glob("*/*/session.jsonl")
    scan = scan_log(log.read_bytes())
    assert scan.verdict == "clean"
    return list(scan.events)


@pytest.mark.slow
@pytest.mark.crash
def test_the_demo_kills_resumes_and_finishes(tmp_path: Path) -> None:
    """Without a terminal it tells the whole story and ends well."""
    result = subprocess.run(
        [sys.executable, str(EXAMPLES / "demo.py")],
        cwd=tmp_path,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    for told in (
        "kill -9",
        "verdict: interrupted",
        "verdict: torn",
        "TOOL_OUTCOME_UNKNOWN",
        "verdict: clean",
        "done twice",
    ):
        assert told in result.stdout
    assert result.stderr == ""


@pytest.mark.slow
def test_the_agent_answers_and_resumes(workspace: Path) -> None:
    """Two runs, one session: the second sees the first."""
    env = {**os.environ, "PHONE_SECONDS": "0"}
    first = subprocess.run(
        agent(workspace, "Put milk on the list."), cwd=workspace, env=env, capture_output=True, text=True, check=True
    )
    assert "Done: added milk" in first.stdout
    session = first.stdout.split()[1]
    second = subprocess.run(
        agent(workspace, "--resume", session, "Put tea on the list."),
        cwd=workspace,
        env=env,
        capture_output=True,
        text=True,
        check=True,
    )
    assert "resumed" not in second.stdout
    assert (workspace / "shopping.txt").read_text(encoding="utf-8").split() == ["milk", "tea"]
    assert [e.type for e in logged(workspace)].count("turn/end") == 2


@pytest.mark.slow
def test_sigterm_closes_the_turn_and_keeps_everything(workspace: Path) -> None:
    """While a tool runs, SIGTERM ends the agent like Ctrl-C: the call has a result, the turn is aborted, all is stored."""
    env = {**os.environ, "PHONE_SECONDS": "3600"}
    with subprocess.Popen(
        agent(workspace, "Put milk on the list."),
        cwd=workspace,
        env=env,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        try:
            while "[run-shell" not in process.stdout.readline():
                assert process.poll() is None
            process.send_signal(signal.SIGTERM)
            assert process.wait(timeout=30) == 130
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    events = logged(workspace)
    assert [e.type for e in events[-3:]] == ["tool/result", "step/end", "turn/end"]
    assert events[-3].to_dict()["data"]["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"  # type: ignore[index,call-overload]
    assert events[-1].to_dict()["data"] == {"turn": 1, "reason": {"kind": "aborted"}}
