"""Watch an agent be killed in the middle of a tool call, and go on.  Run by `make demo`; needs no terminal."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sessionstore import scan_log

HERE = Path(__file__).resolve().parent
PATIENCE = 60  # seconds until the demo gives up waiting for the agent


def say(text: str = "") -> None:
    """One line for the person watching."""
    print(text, flush=True)


def heading(number: int, text: str) -> None:
    """A step of the demo."""
    say(f"\n--- {number}. {text}")


def agent(workspace: Path, *arguments: str) -> list[str]:
    """The command line of the agent."""
    return [sys.executable, str(HERE / "agent.py"), "--root", str(workspace.parent / "sessions"), *arguments]


def contains(path: Path, text: str) -> bool:
    """Whether the file is there and has *text* in it."""
    return path.is_file() and text in path.read_text(encoding="utf-8", errors="replace")


def find_log(workspace: Path) -> Path | None:
    """The log of the one session, once it is published."""
    return next((workspace.parent / "sessions").glob("*/*/session.jsonl"), None)


def kill_in_the_middle(workspace: Path) -> Path:
    """Start the agent and kill it, and its tool, once the tool's side effect has happened; the log."""
    environment = {**os.environ, "PHONE_SECONDS": "3600"}
    command = agent(workspace, "Put milk on the list.")
    with subprocess.Popen(command, cwd=workspace, env=environment, start_new_session=True) as process:
        try:
            deadline = time.monotonic() + PATIENCE
            while True:
                log = find_log(workspace)
                if log is not None and contains(workspace / "shopping.txt", "milk") and contains(log, '"tool/call"'):
                    break
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit("the agent ended before its tool ran")
                time.sleep(0.01)
            say(f"\nkill -9 {process.pid}: the tool has written its line and is still running")
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return log


def shorten(line: str, width: int = 150) -> str:
    """A line that fits a screen."""
    return line if len(line) <= width else f"{line[: width - 1]}…"


def show_disk(log: Path) -> None:
    """The log as it lies on the disk."""
    say(f"{log.name}, {log.stat().st_size} bytes:")
    for line in log.read_text(encoding="utf-8").splitlines():
        say(f"  {shorten(line)}")


def show_verdict(log: Path) -> None:
    """What the scanner says about the log."""
    scan = scan_log(log.read_bytes())
    say(f"verdict: {scan.verdict}; {len(scan.events)} events, safe offset {scan.safe_offset} of {scan.size} bytes")
    for finding in scan.findings:
        say(f"  {finding.describe()}")


def show_history(log: Path) -> None:
    """Who said what, from the log alone."""
    for event in scan_log(log.read_bytes()).events:
        data = json.loads(event.data_json)
        if event.surface_op is None:
            continue
        message = data.get("message", data)
        for block in message["content"]:
            inner = block.get("content", [block])[0]
            said = inner.get("text") or f"[{inner.get('name')} {inner.get('arguments')}]"
            say(f"  seq {event.seq:>3}  {message['source']['kind']:>5}: {shorten(said.strip(), 110)}")


def main() -> None:
    """The whole story."""
    with tempfile.TemporaryDirectory() as name:
        workspace = Path(name) / "workspace"
        shutil.copytree(HERE / "workspace", workspace)
        heading(1, "An agent is asked to put milk on the list. Its tool adds the line, then takes its time.")
        log = kill_in_the_middle(workspace)
        heading(2, "What is on the disk: the tool/call is there, because it was flushed before the tool could start.")
        show_disk(log)
        say(f"shopping.txt: {(workspace / 'shopping.txt').read_text(encoding='utf-8').split()}")
        show_verdict(log)
        heading(3, "To make it worse, a torn write by hand: half an event without its newline.")
        with log.open("ab") as file:
            file.write(b'{"type":"assistant/chunk","seq":99,"ti')
        show_verdict(log)
        heading(
            4, "The session is resumed. Nobody knows whether the tool did its work, so nothing claims that it did not."
        )
        session_id = json.loads(log.read_bytes().splitlines()[0])["id"]
        subprocess.run(agent(workspace, "--resume", session_id, "Go on."), cwd=workspace, check=True)
        heading(5, "The history that the next model call will see, and the log that holds it.")
        show_history(log)
        show_verdict(log)
        say(f"beside the log: {', '.join(sorted(path.name for path in log.parent.iterdir()))}")
        shopping = (workspace / "shopping.txt").read_text(encoding="utf-8").split()
        say(f"shopping.txt: {shopping}")
        if shopping != ["milk"] or scan_log(log.read_bytes()).verdict != "clean":
            raise SystemExit("the demo did not end as it should")
        say("\nNothing acknowledged was lost, nothing was done twice.")


if __name__ == "__main__":
    main()
