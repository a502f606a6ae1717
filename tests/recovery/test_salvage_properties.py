"""What holds of a salvage whatever happened to the log."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import scan_log
from tests.recovery import logs
from tests.recovery.accidents import Lines, accidents, agent_logs
from tests.recovery.salvage_checker import check_salvaged, joined
from tests.recovery.strategies import damaged_bytes


@given(st.data(), agent_logs())
def test_whatever_happens_to_an_agents_log_what_is_intact_survives(data: st.DataObject, lines: Lines) -> None:
    """The result is clean, folds, suits a provider, and every untouched event keeps its seq."""
    original = list(scan_log(b"".join(lines)).events)
    damaged = data.draw(accidents(lines))
    check_salvaged(original, damaged, salvage(damaged, session_id="s1"))


@given(st.data(), agent_logs(), agent_logs())
def test_two_logs_in_one_file_come_apart(data: st.DataObject, lines: Lines, other: Lines) -> None:
    """Lines of another log in between never make a result that is not a log, and none of them vanishes."""
    damaged = data.draw(accidents(lines, other=other))
    check_salvaged(None, damaged, salvage(damaged, session_id="s1"))


@given(damaged_bytes())
def test_odd_logs_after_accidents_give_a_log(damaged: bytes) -> None:
    """Logs that no agent would write, with every kind of event anywhere, are repaired or refused."""
    check_salvaged(None, damaged, salvage(damaged, session_id="s1"))


@given(st.binary(max_size=200) | st.text(alphabet='{}[]":,0123456789 typeseq\n', max_size=200).map(str.encode))
def test_any_bytes_give_a_plan_or_a_refusal(data: bytes) -> None:
    """Garbage is repaired to a log or refused with a reason; nothing else happens."""
    check_salvaged(None, data, salvage(data, session_id="s1"))
    check_salvaged(None, logs.header() + data, salvage(logs.header() + data, session_id="s1"))


@given(agent_logs())
def test_an_undamaged_log_is_closed_as_a_resume_closes_it(lines: Lines) -> None:
    """Of a log that was only interrupted the salvage is the log and its closers, byte for byte."""
    from sessionstore.recovery.plan import plan_repair

    data = b"".join(lines)
    scan = scan_log(data)
    plan = salvage(data)
    if scan.verdict is Verdict.CLEAN:
        assert plan.empty
        return
    closers = [event.to_json() for event in plan_repair(scan).closers]
    assert joined(plan.lines) == data + joined(closers)


@given(st.data(), agent_logs())
def test_a_plan_follows_from_the_bytes_alone(data: st.DataObject, lines: Lines) -> None:
    """The same bytes give the same plan, so that a repeat after a crash does the same."""
    damaged = data.draw(accidents(lines))
    assert salvage(damaged, session_id="s1") == salvage(damaged, session_id="s1")
