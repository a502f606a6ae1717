"""One test for each rule of the damage table, and for what stands next to it."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.salvage import MAX_FORKS, salvage
from sessionstore.recovery.salvage_fill import MAX_LOST_WITHOUT_BYTES
from sessionstore.recovery.scan import scan_log
from tests.recovery import logs
from tests.recovery.salvage_checker import check_salvaged, joined

if TYPE_CHECKING:
    from sessionstore.recovery.salvage_plan import SalvagePlan

CLOSED = logs.closed_log()
ORIGINAL = list(scan_log(b"".join(CLOSED)).events)


def repair(lines: list[bytes] | bytes, *, session_id: str | None = "s1", cwd: str | None = None) -> SalvagePlan:
    """The checked plan for damaged lines."""
    data = lines if isinstance(lines, bytes) else b"".join(lines)
    plan = salvage(data, session_id=session_id, cwd=cwd)
    check_salvaged(None, data, plan)
    return plan


def types(plan: SalvagePlan) -> dict[int, str]:
    """What was made anew, by seq."""
    return {event.seq: event.type for event in plan.made}


def event_at(plan: SalvagePlan, seq: int) -> dict[str, Any]:
    """One event of the result as a dict."""
    value: dict[str, Any] = json.loads(scan_log(joined(plan.lines)).log.event(seq).to_json())
    return value


def is_whole(plan: SalvagePlan) -> bool:
    """Whether the result is the log before the damage, byte for byte."""
    return joined(plan.lines) == b"".join(CLOSED)


# Dirt around records


@pytest.mark.parametrize(
    "data",
    [
        b"\xef\xbb\xbf" + b"".join(CLOSED),
        b"\0" * 512 + b"".join(CLOSED),
        b"".join(line.replace(b"\n", b"\r\n") for line in CLOSED[:4]) + b"\xff\n" + b"".join(CLOSED[4:]),
        b"".join([*CLOSED[:5], b"\0\0\0", *CLOSED[5:]]),
        b"".join([*CLOSED[:5], b"\0" * 4096 + b"\n", *CLOSED[5:]]),
        b"".join(logs.insert(CLOSED, 7, b"\xff\xfe garbage\n")),
        b"".join(logs.insert(CLOSED, 7, b"[" * 20_000 + b"\n")),
        b"".join(logs.insert(CLOSED, 7, b"{}\n\nnull\n")),
    ],
)
def test_dirt_around_valid_records_is_stripped(data: bytes) -> None:
    """A byte order mark, carriage returns, NULs and garbage lines cost nothing."""
    assert is_whole(repair(data))


@pytest.mark.parametrize("at", range(1, len(CLOSED) - 1))
def test_two_records_on_one_line_are_found(at: int) -> None:
    """A lost line end loses no record."""
    assert is_whole(repair(logs.join(CLOSED, at)))


def test_many_records_on_one_line_are_found() -> None:
    """A log without any line end but the header's is a log."""
    assert is_whole(repair(CLOSED[0] + b"".join(line.rstrip(b"\n") for line in CLOSED[1:])))


@pytest.mark.parametrize("at", [2, 5, 12])
def test_a_torn_prefix_before_the_whole_record_is_left_out(at: int) -> None:
    """Wherever a write was cut before it was made again, also inside a character, the whole record is found."""
    line = CLOSED[at]
    for cut in range(1, len(line) - 1):
        for torn in (line[:cut], line[:cut] + b"\n\n"):
            assert is_whole(repair([*CLOSED[:at], torn, *CLOSED[at:]])), cut


def test_a_record_inside_a_broken_record_is_not_taken_for_one_of_the_log() -> None:
    """An event that a payload quotes has a seq that is taken: it neither forks the log nor replaces anything."""
    quoted = json.loads(logs.user(1, "quoted"))
    broken = logs.event("my/plugin", 17, {"seen": [quoted]})[:-3] + b"\n"
    plan = repair([*CLOSED[:12], broken, *CLOSED[12:]])
    assert not plan.forks
    assert plan.lines[2] + b"\n" == CLOSED[2]


# Repeats, order, rows


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("at", [1, 4, 7, 12, len(CLOSED) - 1])
def test_of_exact_repeats_one_is_kept(at: int, count: int) -> None:
    """A line that is written again, at once or later, is there once."""
    assert is_whole(repair([*CLOSED[: at + 1], *[CLOSED[at]] * count, *CLOSED[at + 1 :]]))
    assert is_whole(repair([*CLOSED[:-1], CLOSED[at], CLOSED[-1]]))


def test_a_retried_batch_is_there_once() -> None:
    """A batch of which a part was written, then the whole of it again, loses and doubles nothing."""
    assert is_whole(repair([*CLOSED[:16], *CLOSED[14:]]))


@pytest.mark.parametrize(("a", "b"), [(1, 2), (3, 14), (5, 6), (1, 17), (12, 13)])
def test_lines_out_of_order_are_put_back(a: int, b: int) -> None:
    """Swapped lines go back to their seqs."""
    lines = list(CLOSED)
    lines[a], lines[b] = lines[b], lines[a]
    assert is_whole(repair(lines))


def test_a_block_that_moved_is_put_back() -> None:
    """Lines that stand elsewhere in the file go back as a whole."""
    assert is_whole(repair([CLOSED[0], *CLOSED[8:12], *CLOSED[1:8], *CLOSED[12:]]))


@pytest.mark.parametrize("keys", [{}, {"texts": ["x", "y", "z"]}])
def test_a_row_that_overlaps_gives_the_part_that_continues(keys: dict[str, Any]) -> None:
    """A run packed anew over the end of a row goes on where that row ends."""
    lines = [
        logs.header(),
        logs.turn_start(0),
        logs.row(1, ["a", "b", "c"]),
        logs.row(2, ["b", "c", "d"], **keys),
        logs.turn_end(5),
    ]
    plan = repair(lines)
    assert plan.kept == plan.events == 6
    assert not plan.forks
    texts = [event_at(plan, seq)["data"]["chunk"]["text"] for seq in range(1, 5)]
    assert texts == ["a", "b", "c", "z" if keys else "d"]


def test_a_row_over_single_deltas_gives_the_part_that_continues() -> None:
    """Deltas written one by one and then packed: each is there once."""
    single = {"turn": 1, "step": 1, "chunk": {"type": "text-delta", "index": 0, "text": "a"}}
    lines = [
        logs.header(),
        logs.turn_start(0),
        logs.event("assistant/chunk", 1, single),
        logs.row(1, ["a", "b", "c"]),
        logs.turn_end(4),
    ]
    plan = repair(lines)
    assert (plan.kept, plan.events, plan.forks) == (5, 5, ())


def test_a_bad_row_is_dropped_whole() -> None:
    """A row that breaks the rules for rows gives no member, and each of its seqs is marked as lost."""
    plan = repair([*CLOSED[:5], logs.row(6, ["o", "k", "x"], dt=[1, 1, 1]), *CLOSED[6:]])
    assert types(plan) == dict.fromkeys((6, 7, 8), "recovery/lost")


# Garbled seqs


@pytest.mark.parametrize("seq", ["3", "10", "113", "13000", "999999999", "9007199254740991", "22", "23"])
def test_a_garbled_seq_neither_forks_nor_asks_for_placeholders(seq: str) -> None:
    """The record whose seq does not continue while the next one does is the damage; only its seq is lost."""
    lines = list(CLOSED)
    lines[8] = lines[8].replace(b'"seq":13', b'"seq":' + seq.encode())
    plan = repair(lines)
    assert types(plan) == {13: "recovery/lost"}
    assert (plan.events, plan.forks) == (23, ())


def test_garbled_seqs_one_after_the_other() -> None:
    """Two neighbours with garbled seqs lose only their own."""
    lines = list(CLOSED)
    lines[1] = lines[1].replace(b'"seq":0', b'"seq":8000')
    lines[8] = lines[8].replace(b'"seq":13', b'"seq":813')
    lines[9] = lines[9].replace(b'"seq":14', b'"seq":1400000')
    plan = repair(lines)
    assert plan.events == 23
    assert set(types(plan)) == {0, 13, 14}
    assert types(plan)[13] == "tool/result"


def test_a_garbled_seq_at_the_end_does_not_refuse_the_log() -> None:
    """A last record that is a billion ahead is left out."""
    plan = repair([*CLOSED[:-1], CLOSED[-1].replace(b'"seq":22', b'"seq":2200000000')])
    assert plan.events == 23
    assert types(plan) == {22: "turn/end"}


# Two histories


def rewound() -> list[bytes]:
    """An interrupted log with its closers, and behind them the real events of the writer that was thought dead."""
    open_log = logs.interrupted_log()
    closers = [event.to_json() + b"\n" for event in _closers(open_log)]
    real = [
        logs.result(22, "c2", turn=2),
        logs.result(23, "c3", turn=2),
        logs.step("end", 24, turn=2),
        logs.turn_end(25, 2),
    ]
    return [*open_log, *closers, *real]


def _closers(lines: list[bytes]) -> Any:
    from sessionstore.recovery.plan import plan_repair

    return plan_repair(scan_log(b"".join(lines))).closers


def test_real_events_win_over_stale_closers() -> None:
    """The closers of an earlier recovery go to quarantine, without a fork, also when there are more of them."""
    for count in (4, 2, 1):
        lines = rewound()
        lines = lines[: len(lines) - 4 + count]
        plan = repair(lines)
        assert not plan.forks
        assert plan.lines[-4:][0] + b"\n" == logs.result(22, "c2", turn=2) or count < 4
        assert logs.result(22, "c2", turn=2).rstrip() in plan.lines


def second_turn_by(who: str, *, start: int = 17, messages: int = 1) -> list[bytes]:
    """The second turn as another program writes it."""
    lines = [logs.event("turn/start", start, {"turn": 2, "by": who})]
    lines += [logs.user(start + 1 + k, f"{who} {k}") for k in range(messages)]
    return [*lines, logs.turn_end(start + 1 + messages, 2)]


@pytest.mark.parametrize("swap", [False, True])
def test_of_two_writers_the_longer_branch_stays_and_the_other_becomes_a_fork(swap: bool) -> None:
    """Each history is whole: one in the log, the other in a session named for the seq where they part."""
    mine, theirs = second_turn_by("a", messages=5), second_turn_by("b", messages=2)
    first, second = (theirs, mine) if swap else (mine, theirs)
    plan = repair([*CLOSED[:12], *first, *second])
    assert joined(plan.lines) == b"".join([*CLOSED[:12], *mine])
    (fork,) = plan.forks
    assert (fork.id, fork.divergence) == ("s1~17", 17)
    assert joined(fork.lines[1:]) == b"".join([*CLOSED[1:12], *theirs])
    header = scan_log(joined(fork.lines)).header
    assert header is not None
    assert (header.parent_session, header.seed_length, header.cwd) == ("s1", 17, "/srv/project")


def test_lines_of_two_writers_that_alternate_come_apart() -> None:
    """Interleaved lines belong to the branch whose next seq they have."""
    mine, theirs = second_turn_by("a", messages=4), second_turn_by("b", messages=2)
    mixed = [mine[0], theirs[0], theirs[1], mine[1], mine[2], theirs[2], mine[3], mine[4], theirs[3], mine[5]]
    plan = repair([*CLOSED[:12], *mixed])
    kept = b"".join(plan.lines) + b"".join(plan.forks[0].lines)
    assert all(line.rstrip() in kept for line in (*mine, *theirs))


def test_a_fresh_counter_behind_a_long_log_does_not_become_the_history() -> None:
    """A second program that began at 0 again becomes the fork, whatever it wrote last."""
    other = [logs.event("turn/start", 0, {"turn": 1}), logs.user(1, "fresh"), logs.turn_end(2, 1)]
    plan = repair([*CLOSED, *other])
    assert joined(plan.lines) == b"".join(CLOSED)
    assert [fork.id for fork in plan.forks] == ["s1~0"]
    assert joined(plan.forks[0].lines[1:]) == b"".join(other)


def test_of_equal_branches_the_one_with_the_later_last_turn_end_stays_then_the_first() -> None:
    """Ties are decided by the time of the last turn/end, then by the order of the file."""
    mine, theirs = second_turn_by("a"), second_turn_by("b")
    assert mine[1].rstrip() in repair([*CLOSED[:12], *mine, *theirs]).lines
    later = [*theirs[:-1], logs.event("turn/end", 19, {"turn": 2, "reason": {"kind": "completed"}}, time=2**41)]
    assert theirs[1].rstrip() in repair([*CLOSED[:12], *mine, *later]).lines


def test_a_fork_with_an_open_turn_is_closed() -> None:
    """The shorter history keeps all its events, and its open turn gets closers."""
    theirs = [logs.turn_start(17, 2), logs.user(18, "x"), logs.user(19, "y")]
    plan = repair([*CLOSED, *theirs])
    (fork,) = plan.forks
    assert [event.type for event in fork.made] == ["turn/end"]
    assert theirs[2].rstrip() in fork.lines


def test_there_is_a_limit_to_forks() -> None:
    """Dozens of second histories do not become dozens of sessions; what is over the limit is listed."""
    branches = [second_turn_by(f"w{k}") for k in range(MAX_FORKS + 5)]
    plan = repair([*CLOSED[:12], *(line for branch in branches for line in branch)])
    assert len(plan.forks) <= MAX_FORKS
    assert plan.quarantined


# Holes


def lost(*at: int, of: list[bytes] = CLOSED) -> SalvagePlan:
    """The plan for a log without the lines with these indices."""
    return repair([line for index, line in enumerate(of) if index not in at])


def test_a_hole_keeps_its_seqs() -> None:
    """What nothing in the log says becomes recovery/lost, with the mark for other readers."""
    plan = lost(2)
    assert types(plan) == {1: "recovery/lost"}
    (line,) = (json.loads(line) for line in plan.lines if b"recovery/lost" in line)
    assert list(line) == ["type", "seq", "time", "data", "ignorable"]
    assert line["ignorable"] is True
    assert line["time"] == 1_700_000_000_000


def test_a_lost_entry_says_where_its_bytes_were() -> None:
    """Offset and length are those of the bytes that were destroyed in the damaged log."""
    start = sum(map(len, CLOSED[:2]))
    plan = repair([*CLOSED[:2], b"\0" * (len(CLOSED[2]) - 1) + b"\n", *CLOSED[3:]])
    (line,) = (json.loads(line) for line in plan.lines if b"recovery/lost" in line)
    assert (line["data"]["offset"], line["data"]["length"]) == (start, len(CLOSED[2]))


def test_a_lost_message_is_made_of_the_calls_that_it_asked_for() -> None:
    """Without block ends the recorded calls tell what the message asked for; the results keep their place."""
    plan = lost(7)
    assert types(plan) == {12: "assistant/message"}
    event = event_at(plan, 12)
    message = event["data"]["message"]
    assert message["content"] == [{"type": "tool-call", "id": "c1", "name": "sh", "arguments": "{}"}]
    assert message["source"] == {"kind": "model", "provider": "unknown", "model": "unknown"}


def with_blocks() -> list[bytes]:
    """A turn whose message was streamed in blocks."""

    def block(seq: int, index: int, content: dict[str, str]) -> bytes:
        chunk = {"type": "block-end", "index": index, "block": content}
        return logs.event("assistant/chunk", seq, {"turn": 1, "step": 1, "chunk": chunk})

    call = {"type": "tool-call", "id": "c1", "name": "sh", "arguments": "{}"}
    return [
        logs.header(),
        logs.turn_start(0),
        logs.event("request/header", 1, {"header": {"config": {"provider": "p", "model": "m"}}, "reason": "initial"}),
        logs.step("start", 2),
        block(3, 0, {"type": "text", "text": "so"}),
        block(4, 1, call),
        logs.assistant(5, calls=("c1",)),
        logs.call(6, "c1"),
        logs.result(7, "c1"),
        logs.step("end", 8),
        logs.turn_end(9),
    ]


def test_a_lost_message_is_assembled_from_its_blocks() -> None:
    """Blocks, sources and model of the message are those that the log still holds."""
    plan = lost(6, of=with_blocks())
    assert types(plan) == {5: "assistant/message"}
    made = event_at(plan, 5)
    message = made["data"]["message"]
    assert [part["type"] for part in message["content"]] == ["text", "tool-call"]
    assert message["source"] == {"kind": "model", "provider": "p", "model": "m"}
    assert made["sourceEventSeqs"] == [3, 4]


@pytest.mark.parametrize("missing", [(8,), (7, 8), (8, 9), (7, 8, 9)])
def test_a_lost_result_is_answered_as_unknown(missing: tuple[int, ...]) -> None:
    """A lost call may have run: the answer in the place of a lost result never says that it did not start."""
    plan = lost(*missing, of=with_blocks())
    (result,) = (json.loads(line) for line in plan.lines if b'"tool/result"' in line)
    assert result["data"]["error"]["code"] == "TOOL_OUTCOME_UNKNOWN"
    assert result.get("sourceEventSeqs") == ([6] if 7 not in missing else None)


def test_a_result_whose_call_is_lost_goes_to_quarantine() -> None:
    """An answer to nothing would be refused by a provider."""
    plan = lost(4, 5, 6, 7, of=with_blocks())
    assert types(plan)[7] == "recovery/lost"
    assert any("call that it answers is lost" in each.reason for each in plan.quarantined)


def test_lost_boundaries_are_made_anew() -> None:
    """What stands around a hole says which turns and steps ended and began in it."""
    plan = lost(10, 11, 12, 13, 14)
    assert types(plan) == {
        15: "step/end",
        16: "turn/end",
        17: "recovery/lost",
        18: "turn/start",
        19: "step/start",
    }


def test_a_call_without_a_place_for_its_answer_is_closed_as_unknown() -> None:
    """The end of a log with a hole in its last turn does not claim that a lost call never started."""
    lines = [*logs.interrupted_log()[:-1], b"\0" * 40 + b"\n", logs.event("my/note", 22, {})]
    plan = repair(lines)
    codes = [json.loads(line)["data"]["error"]["code"] for line in plan.lines if b'"error"' in line]
    assert codes == ["TOOL_OUTCOME_UNKNOWN", "TOOL_OUTCOME_UNKNOWN"]


def replaced() -> list[bytes]:
    """A log with a pruned result and a summary of two messages."""
    pruned = json.loads(logs.result(4, "c1"))
    pruned["seq"] = 5
    pruned["surfaceOp"] = {"op": "replace", "start": 4, "end": 4}
    pruned["sourceEventSeqs"] = [4]
    pruned["data"]["message"]["content"][0]["content"] = []
    op = {"op": "replace", "start": 1, "end": 5}
    return [
        logs.header(),
        logs.turn_start(0),
        logs.user(1),
        logs.assistant(2, calls=("c1",)),
        logs.call(3, "c1"),
        logs.result(4, "c1"),
        logs.line(pruned),
        logs.user(6, "summary", surfaceOp=op, sourceEventSeqs=[1, 2, 5]),
        logs.turn_end(7),
    ]


@pytest.mark.parametrize(("index", "seq", "kind"), [(2, 1, "user/message"), (5, 4, "tool/result")])
def test_a_lost_node_that_a_replacement_names_is_made_anew(index: int, seq: int, kind: str) -> None:
    """The replacement stays, because what it replaces is there again, saying that its content is lost."""
    plan = lost(index, of=replaced())
    assert types(plan) == {seq: kind}
    assert scan_log(joined(plan.lines)).surface.nodes == [6]


def test_holes_without_bytes_are_limited() -> None:
    """A thousand events may be missing without a trace; of more the log is refused, and nothing is planned."""

    def gap(count: int) -> bytes:
        tail = [logs.turn_start(23 + count, 3), logs.user(24 + count), logs.turn_end(25 + count, 3)]
        return b"".join([*CLOSED, *tail])

    assert repair(gap(MAX_LOST_WITHOUT_BYTES)).events == 26 + MAX_LOST_WITHOUT_BYTES
    plan = repair(gap(MAX_LOST_WITHOUT_BYTES + 1))
    assert plan.refusal is not None
    assert "1001 events are missing at seq 23" in plan.refusal


@pytest.mark.parametrize(("lost_bytes", "fine"), [(5000, True), (4999, False)])
def test_a_hole_holds_at_most_one_event_per_lost_byte(lost_bytes: int, fine: bool) -> None:
    """More events than bytes were lost is no hole that a disk makes."""
    tail = [logs.turn_start(5023, 3), logs.user(5024), logs.turn_end(5025, 3)]
    plan = repair(b"".join([*CLOSED, bytes(lost_bytes - 1) + b"x\n", *tail]))
    assert (plan.refusal is None) == fine


# Events that break rules


def test_an_invalid_event_gives_its_seq_to_a_lost_one() -> None:
    """A message that cannot be replayed goes to quarantine; the rest of the log stays as it is."""
    plan = repair([*CLOSED[:2], CLOSED[2].replace(b'"id":"m1"', b'"id":""'), *CLOSED[3:]])
    assert plan.verdict is Verdict.INVALID
    assert types(plan) == {1: "recovery/lost"}


def test_retired_forms_are_refused() -> None:
    """What another version reads is not damage: nothing is taken out of such a log."""
    lines = logs.insert(CLOSED, 13, b"\xff\n")
    lines[2] = logs.event("mode/set", 1, {"mode": "plan"})
    plan = repair(lines)
    assert plan.refusal is not None
    assert "mode/set" in plan.refusal


# Headers


def test_a_lost_header_is_made_anew_and_marked() -> None:
    """The id and directory are the caller's, the time is the first event's, and the header says that it is rebuilt."""
    plan = repair(CLOSED[1:], cwd="/srv/other")
    assert plan.header_fate == "rebuilt"
    assert json.loads(plan.lines[0]) == {
        "type": "session", "version": 0, "id": "s1", "createdAt": 1_700_000_000_000, "cwd": "/srv/other",
        "delegationDepth": 0, "rebuilt": True,
    }  # fmt: skip
    assert joined(plan.lines[1:]) == b"".join(CLOSED[1:])


@pytest.mark.parametrize("cut", [1, 20, 60])
def test_a_torn_header_is_made_anew(cut: int) -> None:
    """A header line that was cut short, fused with the first event or not."""
    for end in (b"", b"\n"):
        plan = repair([CLOSED[0][:cut] + end, *CLOSED[1:]])
        assert (plan.header_fate, plan.kept) == ("rebuilt", 23)


def test_a_header_that_stands_elsewhere_is_put_first() -> None:
    """A header behind the first event is the header; a second one is left out."""
    assert is_whole(repair([CLOSED[1], CLOSED[0], *CLOSED[2:]]))
    assert is_whole(repair([*CLOSED[:8], CLOSED[0], *CLOSED[8:]]))


def test_without_an_id_a_lost_header_is_refused() -> None:
    """Nobody can say which session it was."""
    plan = repair(CLOSED[1:], session_id=None)
    assert plan.refusal is not None


def test_a_header_that_names_another_session_gets_the_id_it_is_stored_under() -> None:
    """A copied directory becomes a session of its own; everything else in the header stays."""
    plan = repair(logs.insert(CLOSED, 7, b"\xff\n"), session_id="copy")
    header = json.loads(plan.lines[0])
    assert (header["id"], header["cwd"], header["rebuilt"]) == ("copy", "/srv/project", True)


@pytest.mark.parametrize("data", [b"", b"\n \n", b"\0" * 99, CLOSED[0][:30], logs.header(version=7)])
def test_nothing_to_save_is_refused(data: bytes) -> None:
    """Empty logs and other versions get a refusal with a reason."""
    assert repair(data).refusal
