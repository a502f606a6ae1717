"""Starting an agent, hearing what it says, and killing it at the moment that was aimed at."""

from __future__ import annotations

import contextlib
import os
import select
import shutil
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct

from tests.crash.agent_child import Plan
from tests.paths import REPO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.crash.witness import Witness

__all__ = ["Aim", "no_strace", "run_child"]

PATIENCE = 90  # seconds without a word from a child until the harness gives up on it


class Aim(Struct, frozen=True, kw_only=True):
    """When a child has to die: *delay* seconds after it said *line* (its beginning) for the *count*-th time.

    Without a *line* it kills itself (``plan.kill``) or *strace*, a command in front of it, does.  Whoever says that
    there is nothing more to come (``W``, ``X``) is killed in any case.
    """

    plan: Plan
    line: str = ""
    count: int = 1
    delay: float = 0.0
    strace: tuple[str, ...] = ()


def no_strace() -> str | None:
    """Why strace cannot inject signals here, or ``None``."""
    if sys.platform != "linux" or shutil.which("strace") is None:
        return "strace is not installed"
    probe = subprocess.run(["strace", "-qq", "-o", "/dev/null", "true"], check=False, capture_output=True)
    return None if probe.returncode == 0 else "strace may not trace here"


def run_child(aim: Aim, said: Witness, *, then: Callable[[], object] | None = None) -> None:
    """Run a child until it is dead, by whosever hand, and hear all it said.

    With *then*, that is called at the moment aimed at, and the child is killed once it has said that the storage
    refused it, or that its turns are done.
    """
    command = [*aim.strace, sys.executable, "-m", "tests.crash.agent_child", msgspec.json.encode(aim.plan).decode()]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=REPO, start_new_session=True, bufsize=0
    ) as child:
        assert child.stdout is not None
        assert child.stderr is not None
        try:
            _hear(child, aim, said, then)
        finally:
            _kill_all(child)
        errors = child.stderr.read().decode(errors="replace")
    if child.returncode != -signal.SIGKILL:  # strace dies of what killed its tracee
        raise AssertionError(f"the child ended with {child.returncode}: {errors[-2000:]}")


def _hear(child: subprocess.Popen[bytes], aim: Aim, said: Witness, then: Callable[[], object] | None) -> None:
    """Pass on every line, and act when the moment has come."""
    left = aim.count if aim.line else 0
    for line in _lines(child):
        said.hear(line)
        if left and line.startswith(aim.line):
            left -= 1
            if left == 0:
                _wait(aim.delay)
                if then is None:
                    _kill_all(child)
                else:
                    then()
        if line == "W" or line.startswith("X"):
            _kill_all(child)


def _lines(child: subprocess.Popen[bytes]) -> Iterator[str]:
    """The lines of a child as they come, also those that it wrote just before it died."""
    assert child.stdout is not None
    pipe = child.stdout.fileno()
    end = os.pidfd_open(child.pid)
    rest = b""
    dead = False
    try:
        while True:
            ready, _, _ = select.select([pipe] if dead else [pipe, end], [], [], PATIENCE)
            if not ready:
                raise AssertionError(f"the child said nothing for {PATIENCE} s")
            if end in ready:
                dead = True
                _kill_all(child)  # the tools that it has left behind hold the pipe open
            if pipe in ready:
                data = os.read(pipe, 65_536)
                if not data:
                    return
                *whole, rest = (rest + data).split(b"\n")
                for raw in whole:
                    yield raw.decode()
    finally:
        os.close(end)


def _kill_all(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and the tools it started."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _wait(seconds: float) -> None:
    """Pass the time to a random moment, precisely: a sleep is rounded up to something longer than a write."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass
