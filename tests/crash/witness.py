"""What a child said before it died, and whether the log it left keeps every promise that was made to it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from sessionstore import SessionNotFoundError, SessionStore, interrupted_turn_closers
from sessionstore.invariants import InvariantTrace
from tests.crash.agent_child import CWD, SOURCE, digest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from sessionstore import Event, RepairReport, StoredSession
    from sessionstore.lossless import Json

__all__ = ["Checked", "Witness", "check_session"]


class Witness:
    """What was said, line by line, by one child and then by another that resumed its session."""

    def __init__(self) -> None:
        self.digests: list[str] = []  # of every event appended, by seq
        self.acknowledged = 0
        self.running: set[str] = set()  # tools that run
        self.started: set[str] = set()  # tools that ever ran
        self.operations: list[str] = []  # file operations that have begun and not finished
        self.touched = False  # whether this child has done anything to a file
        self.published = False
        self.resuming = False
        self.power_off_at: float | None = None

    def hear(self, line: str) -> None:
        """Take in one line."""
        kind, _, rest = line.partition(" ")
        if kind == "E":
            seq, _, value = rest.partition(" ")
            if int(seq) != len(self.digests):
                raise AssertionError(f"seq {seq} was given out after {len(self.digests)} events")
            self.digests.append(value)
        elif kind == "A":
            count, _, at = rest.partition(" ")
            if self.power_off_at is None or float(at) < self.power_off_at:
                self.acknowledged = max(self.acknowledged, int(count))
            self.published = self.published or self.acknowledged > 0
        elif kind == "B":
            self.operations.append(rest)
            self.touched = True
        elif kind == "F":
            if self.operations.pop() != rest:
                raise AssertionError(f"{rest} finished, but it had not begun")
        elif kind == "T" and self.power_off_at is None:
            self.running.add(rest)
            self.started.add(rest)
        elif kind == "U":
            self.running.discard(rest)
        elif kind == "R":
            if not self.acknowledged <= int(rest) <= len(self.digests):
                raise AssertionError(f"a resume kept {rest} events, {self.acknowledged} were acknowledged")
            del self.digests[int(rest) :]
            self.resuming = False

    def power_off(self) -> None:
        """Call this right before the power is cut: nothing that is said from now on counts as a promise.

        After a real cut nobody says anything.  Where it is only played, an fsync that is running while the file
        system is shut down can return success without the data, which any program shows that writes and syncs.
        """
        self.power_off_at = time.monotonic()

    def next_child(self) -> None:
        """The child has died; another one is going to resume the session."""
        self.operations.clear()
        self.running.clear()
        self.resuming = True
        self.touched = False

    def moment(self) -> str:
        """In which class of moments the child died, as far as what it said last can tell."""
        if self.touched and self.resuming:
            return "repair"
        if self.touched and not self.published:
            return "publication"
        if self.operations and self.operations[-1] == "write":
            return "write"
        if self.operations and self.operations[-1] == "sync":
            return "fsync"
        if self.operations:
            return "another file operation"
        if self.running:
            return "tool"
        if len(self.digests) > self.acknowledged:
            return "window"
        return "idle"


class Checked(Struct, frozen=True, kw_only=True):
    """What a check of a session found in order."""

    acknowledged: int
    stored: int
    torn: bool = False
    cut_bytes: int = 0
    unknown_outcomes: int = 0


def _check_prefix(events: Sequence[Event], said: Witness) -> int:
    """How many of *events* the children appended; what stands behind them closes the turn that was cut off."""
    same = 0
    for event, wanted in zip(events, said.digests, strict=False):
        if digest(event) != wanted:
            break
        same += 1
    assert same >= said.acknowledged, f"{said.acknowledged} events were acknowledged, {same} are there"
    assert [event.seq for event in events] == list(range(len(events)))
    closers = interrupted_turn_closers(events[:same])
    assert list(events[same:]) == closers, "what stands behind the events of the child is not what closes its turn"
    trace = InvariantTrace("execution")
    for event in events:
        trace.check(event)
        trace.commit(event)
    return same


def _check_tools(events: Sequence[Event], said: Witness) -> int:
    """No tool that ran is said not to have started; how many are said to have an unknown outcome."""
    codes: dict[str, str | None] = {}
    recorded: set[str] = set()
    for event in events:
        data = _mapping(event.to_dict()["data"])
        if event.type == "tool/call":
            recorded.add(str(data["callId"]))
        elif event.type == "tool/result":
            source = _mapping(_mapping(data["message"])["source"])
            error = data.get("error")
            codes[str(source["callId"])] = None if error is None else str(_mapping(error)["code"])
    assert said.started <= recorded, "a tool ran before its call was durable"
    for call in said.started:
        assert codes[call] in {None, "TOOL_OUTCOME_UNKNOWN"}, f"a tool that ran is said to be {codes[call]}"
    for call in said.running:
        assert codes[call] == "TOOL_OUTCOME_UNKNOWN", f"a tool that was running is said to be {codes[call]}"
    return sum(code == "TOOL_OUTCOME_UNKNOWN" for code in codes.values())


def _mapping(value: Json) -> Mapping[str, Json]:
    assert isinstance(value, dict)
    return value


def _check_cut(before: bytes, after: bytes, report: RepairReport) -> None:
    """Not a byte is gone: what was cut lies in quarantine, what was not cut stands."""
    if report.cut_at is None:
        assert after.startswith(before)
        return
    cut = before[report.cut_at :]
    assert len(cut) == report.cut_bytes
    assert after.startswith(before[: report.cut_at])
    if cut.strip(b"\0 \t\r\n"):
        assert report.quarantine is not None
        assert Path(report.quarantine).read_bytes() == cut
        assert Path(report.quarantine).stat().st_mode & 0o777 == 0o600


async def _go_on(session: StoredSession) -> None:
    """The next turn of a resumed session."""
    async with session.turn() as turn:
        turn.user("go on")
        async with turn.step() as step:
            step.message({"content": [{"type": "text", "text": "gone on"}], "source": SOURCE})
    assert await session.flush() == session.seq == session.durable_seq


async def check_session(root: Path, session_id: str, said: Witness) -> Checked:
    """Resume what the children left and check every promise; the session goes on and a second resume changes nothing.

    Raises:
        AssertionError: a promise was broken.
    """
    log = _log_of(root)
    before = log.read_bytes() if log is not None else b""
    async with SessionStore(root) as store:
        try:
            session = await store.resume(session_id)
        except SessionNotFoundError:
            assert said.acknowledged == 0, f"{said.acknowledged} events were acknowledged, and there is no session"
            session = await store.create(session_id, cwd=CWD)  # its id is as free as if nothing had happened
            await _go_on(session)
            return Checked(acknowledged=0, stored=0)
        report = session.recovery
        assert log is not None
        assert report is not None
        assert session.durable_seq == session.seq
        _check_cut(before, log.read_bytes(), report)
        stored = _check_prefix(session.events, said)
        unknown = _check_tools(session.events, said)
        await _go_on(session)
    await _check_second_resume(root, session_id, log)
    return Checked(
        acknowledged=said.acknowledged,
        stored=stored,
        torn=report.cut_at is not None,
        cut_bytes=report.cut_bytes,
        unknown_outcomes=unknown,
    )


async def _check_second_resume(root: Path, session_id: str, log: Path) -> None:
    """A second resume finds nothing to do and changes nothing."""
    after = log.read_bytes()
    async with SessionStore(root) as store:
        again = await store.resume(session_id)
        assert again.recovery is not None
        assert not again.recovery.changed
        assert again.derive_messages()
    assert log.read_bytes() == after


def _log_of(root: Path) -> Path | None:
    """The one log below *root*, or none."""
    logs = list(root.glob("*/*/session.jsonl*"))
    found = [path for path in logs if path.name in {"session.jsonl", "session.jsonl.zst", "session.jsonl.zstd"}]
    assert len(found) <= 1, found
    return found[0] if found else None
