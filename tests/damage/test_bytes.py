"""What other stores choke on, byte for byte: each kind of report, and its neighbours."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from msgspec import Struct

from sessionstore import (
    DamagedLogError,
    Event,
    EventTypes,
    InvalidEventError,
    Session,
    SessionStore,
    UnsupportedFormatError,
    Verdict,
)
from sessionstore.chunks import ROW_TYPES
from sessionstore.recovery.salvage import salvage
from sessionstore.recovery.scan import LogScanner, scan_log
from sessionstore.vocabulary import ROW_NAMES
from tests.recovery import logs
from tests.recovery.salvage_checker import check_salvaged, history_faults, joined
from tests.unit.jsonl_places import put

if TYPE_CHECKING:
    from sessionstore.recovery.salvage_plan import SalvagePlan

CLOSED = logs.closed_log()
WHOLE = b"".join(CLOSED)


class Note(Struct, frozen=True):
    """A payload of a plugin."""


RESUMABLE = {Verdict.CLEAN, Verdict.INTERRUPTED, Verdict.TORN}


def repaired(data: bytes) -> SalvagePlan:
    """The checked plan for damaged bytes."""
    plan = salvage(data, session_id="s1")
    check_salvaged(None, data, plan)
    return plan


def is_whole(plan: SalvagePlan) -> bool:
    """Whether nothing at all was lost."""
    return joined(plan.lines) == WHOLE


# Numbers


@pytest.mark.parametrize("number", [2**53 - 1, 2**53, 2**64, -(2**200), 10**400, 5e-324, 1.0, 1e300])
async def test_a_number_of_any_size_comes_back_exactly(tmp_path: Path, number: float) -> None:
    """Past 64 bit, past a double, and a float that is integral: type and value survive the disk."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s1")
        session.append("my/number", {"n": number})
    async with SessionStore(tmp_path) as store:
        found = (await store.resume("s1")).events[0].to_dict()["data"]
    assert isinstance(found, dict)
    assert (type(found["n"]), found["n"]) == (type(number), number)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf"), -0.0])
def test_what_json_cannot_say_is_never_written(value: float) -> None:
    """NaN and infinities are refused with the path, before anything is logged."""
    session = Session("s1")
    with pytest.raises(InvalidEventError, match="x"):
        session.append("my/number", {"x": value})
    assert session.seq == 0


@pytest.mark.parametrize("text", [b"NaN", b"Infinity", b"-Infinity", b"1e", b"01"])
def test_an_old_line_with_such_a_number_is_isolated(text: bytes) -> None:
    """A line that another writer left is one defect; the events around it survive."""
    bad = logs.event("my/number", 17, {"x": 1}).replace(b'"x":1', b'"x":' + text)
    rest = [line.replace(b'"seq":%d,' % n, b'"seq":%d,' % (n + 1)) for n, line in enumerate(CLOSED[12:], 17)]
    plan = repaired(b"".join([*CLOSED[:12], bad, *rest]))
    assert (plan.kept, plan.events) == (23, 24)


# NULs


@pytest.mark.parametrize("count", [1, 412, 512, 1206, 1728, 4096])
def test_trailing_nuls_lose_nothing(count: int) -> None:
    """Space that was reserved and never written is cut; a torn record before it goes with it."""
    for torn in (b"", CLOSED[-1][:30], CLOSED[-1].rstrip(b"\n")):
        scan = scan_log(WHOLE + torn + bytes(count))
        assert (scan.verdict, len(scan.log)) == (Verdict.TORN, 23)
        assert scan.safe_offset == len(WHOLE)


async def test_a_crash_that_spoils_log_index_and_lock_is_one_resume(tmp_path: Path) -> None:
    """NULs behind the log, an index of NULs and a stale lock file together: one call repairs all three."""
    path = Path(put(str(tmp_path), "s1", WHOLE + bytes(1206)))
    (path.parent / "session.index").write_bytes(bytes(300))
    (path.parent / "session.lock").write_text('{"pid": 999999, "host": "gone"}')
    async with SessionStore(tmp_path) as store:
        assert [row.id for row in (await store.list()).sessions] == ["s1"]
        assert (await store.resume("s1")).seq == 23


def test_a_report_names_line_and_byte() -> None:
    """A NUL line in the middle is named by line number and byte offset."""
    data = b"".join([*CLOSED[:12], bytes(50) + b"\n", *CLOSED[12:]])
    finding = scan_log(data).findings[0]
    assert (finding.line, finding.offset) == (13, len(b"".join(CLOSED[:12])))
    assert is_whole(repaired(data))


# Line separators


SEPARATORS = [chr(n) for n in (*range(0x20), 0x7F, 0x85, 0x2028, 0x2029, 0x1680, 0xFEFF)]


async def test_every_separator_inside_a_string_is_data(tmp_path: Path) -> None:
    """Only the byte 0x0A ends a line."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s1")
        for char in SEPARATORS:
            session.append("my/text", {"t": f"a{char}b"})
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s1")
        assert [event.to_dict()["data"] for event in session.events] == [{"t": f"a{c}b"} for c in SEPARATORS]


def test_no_line_of_a_log_is_ever_split_as_text() -> None:
    """The library uses no text-mode iteration and no splitlines on what it stores."""
    import sessionstore

    root = Path(sessionstore.__file__).parent
    for folder in ("", "recovery", "backends", "backends/jsonl"):
        for source in (root / folder).glob("*.py"):
            assert not re.search(r"\.splitlines\(|\.readlines?\(", source.read_text(encoding="utf-8")), source


def test_a_long_crlf_line_across_every_piece_boundary() -> None:
    """A carriage return as the last byte of a piece changes nothing."""
    long = logs.user(23, "x" * 70_000).replace(b"\n", b"\r\n")
    data = WHOLE + long
    end = len(data)
    for cut in (end - 1, end - 2, end - 3, len(WHOLE), len(WHOLE) + 65_536):
        scanner = LogScanner()
        scanner.feed(data[:cut])
        scanner.feed(data[cut:])
        assert scanner.finish().findings == scan_log(data).findings


def test_a_record_with_real_line_breaks_is_one_loss() -> None:
    """Another writer's raw newlines spread one record over lines: all of them are listed, the rest survives."""
    spread = CLOSED[13].replace(b"again", b"one\ntwo\nthree")
    plan = repaired(b"".join([*CLOSED[:13], spread, *CLOSED[14:]]))
    assert [event.seq for event in plan.made] == [18]
    assert sum(each.length for each in plan.quarantined) >= len(spread) - 3


# Encodings


@pytest.mark.parametrize("text", ["\ud83d", "\udce4\udcbd", "a\ud83d b", "\x00", "".join(map(chr, range(256)))])
async def test_odd_text_is_stored_as_it_is(tmp_path: Path, text: str) -> None:
    """Lone surrogates, NULs and binary output come back, through a fork and a repair too."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s1", cwd="/srv/project")
        session.append("my/text", {"t": text})
        session.append("my/text", {"t": "after"})
        await session.flush()
        await store.fork(session, child_id="child")
        path = store.locate("s1", "/srv/project")
    assert path is not None
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([lines[0], b"\xff", *lines[1:-1], logs.turn_end(2).rstrip(), b""]))
    async with SessionStore(tmp_path) as store:
        await store.repair("s1", dry_run=False)
        for session_id in ("s1", "child"):
            assert (await store.resume(session_id)).events[0].to_dict()["data"] == {"t": text}


@pytest.mark.parametrize("start", [b"\xef\xbb\xbf", b"\xef\xbb\xbf\r\n", b"\r\n", b"\n\n"])
def test_a_byte_order_mark_and_carriage_returns_cost_nothing(start: bytes) -> None:
    """What an editor adds is stripped."""
    data = start + WHOLE.replace(b"\n", b"\r\n")
    plan = repaired(data)
    assert plan.empty or is_whole(plan)


# Nesting and length


@pytest.mark.slow
@pytest.mark.parametrize("depth", [5_000, 9_990])
async def test_deep_values_are_stored_and_read(tmp_path: Path, depth: int) -> None:
    """Ten thousand levels are the limit, whatever the interpreter's own."""
    value: object = 1
    for _ in range(depth):
        value = [value]
    async with SessionStore(tmp_path) as store:
        session = await store.create("s1")
        session.append("my/deep", {"v": value})
    async with SessionStore(tmp_path) as store:
        assert (await store.resume("s1")).events[0].data_json.count(b"[") == depth


@pytest.mark.slow
@pytest.mark.parametrize("line", [b"[" * 20_000, b'{"a":' * 20_000, b"[" * 20_000 + b"]" * 20_000, b'"' * 9999])
def test_a_line_that_is_too_deep_is_isolated(line: bytes) -> None:
    """It neither crashes the reader nor hides what follows."""
    assert is_whole(repaired(b"".join(logs.insert(CLOSED, 6, line + b"\n"))))


# Torn and merged lines


@pytest.mark.parametrize("log", [logs.closed_log(), logs.interrupted_log()], ids=["closed", "interrupted"])
def test_every_cut_returns_the_complete_prefix(log: list[bytes]) -> None:
    """Cut at each byte of the last two lines: the whole lines before the cut are there, and never damaged."""
    data = b"".join(log)
    for cut in range(len(data) - len(log[-1]) - len(log[-2]), len(data)):
        scan = scan_log(data[:cut])
        assert scan.verdict in RESUMABLE
        assert scan.safe_offset == data.rfind(b"\n", 0, cut) + 1


@pytest.mark.parametrize(
    "tail", [b'{"seq":2,"ty', b'{"type":"x","seq":23,"time":1,"data":{}}', "世".encode()[:2], b"\0\0"]
)
async def test_what_is_appended_after_a_torn_tail_starts_on_a_clean_line(tmp_path: Path, tail: bytes) -> None:
    """Nothing is ever glued to a fragment, and a second crash before the first append changes nothing."""
    path = Path(put(str(tmp_path), "s1", WHOLE + tail))
    for _ in range(2):
        async with SessionStore(tmp_path) as store:
            await store.resume("s1")
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s1")
        session.append("my/note", {})
    assert path.read_bytes().startswith(WHOLE)
    assert [line[:17] for line in path.read_bytes()[len(WHOLE) :].split(b"\n")] == [b'{"type":"my/note"', b""]


@pytest.mark.parametrize("between", [b"", b"\n\n", b"\0\0\0", b" "])
@pytest.mark.parametrize("cut", [1, 30, 100])
def test_an_incomplete_record_and_then_the_complete_one(between: bytes, cut: int) -> None:
    """In any of the forms in which it was seen, the complete record survives."""
    for at in (5, 9, 13):
        assert is_whole(repaired(b"".join([*CLOSED[:at], CLOSED[at][:cut] + between, *CLOSED[at:]])))


# Headers


def test_headers_lost_doubled_torn_and_misplaced() -> None:
    """Every way in which a first line goes wrong is repaired without losing an event."""
    header = CLOSED[0]
    for data in (
        WHOLE[len(header) :],
        header[:20] + b"\n" + WHOLE[len(header) :],
        header[:20] + WHOLE[len(header) :],
        header + WHOLE,
        CLOSED[1] + header + b"".join(CLOSED[2:]),
        WHOLE + header,
        bytes(len(header) - 1) + b"\n" + WHOLE[len(header) :],
    ):
        plan = repaired(data)
        assert joined(plan.lines[1:]) == b"".join(CLOSED[1:]) or plan.empty


@pytest.mark.parametrize("version", [1, 99, "0", "3", 0.5, None, -1, True, [], {}])
async def test_another_version_is_left_alone(tmp_path: Path, version: object) -> None:
    """A log of another version is never opened for writing, repaired or changed."""
    header = logs.line({**logs.HEADER, "version": version})
    path = Path(put(str(tmp_path), "s1", header + b"\xff\n" + b"".join(CLOSED[1:])))
    before = path.read_bytes()
    async with SessionStore(tmp_path) as store:
        with pytest.raises((UnsupportedFormatError, DamagedLogError)) as caught:
            await store.resume("s1", on_damage="salvage")
        assert isinstance(caught.value, UnsupportedFormatError)
        assert (await store.repair("s1", dry_run=False)).refusal
    assert path.read_bytes() == before


# Orphans


@pytest.mark.parametrize("answered", [0, 1, 2, 3])
def test_of_parallel_calls_exactly_the_missing_ones_are_answered(answered: int) -> None:
    """Whatever number of results was written before the crash, and in whatever order."""
    calls = ("c1", "c2", "c3")
    lines = [logs.header(), logs.turn_start(0), logs.user(1), logs.step("start", 2), logs.assistant(3, calls=calls)]
    lines += [logs.call(4 + k, call) for k, call in enumerate(calls)]
    lines += [logs.result(7 + k, call) for k, call in enumerate(reversed(calls[:answered]))]
    plan = repaired(b"".join(lines))
    made = [event for event in plan.made if event.type == "tool/result"]
    assert len(made) == 3 - answered
    assert not history_faults(scan_log(joined(plan.lines)).events)


def test_a_second_result_and_a_reused_call_id_are_carried() -> None:
    """What was odd before the damage stays as it is: only what the damage took is touched."""
    lines = [
        *CLOSED[:10],
        logs.result(15, "c1"),
        logs.step("end", 16),
        logs.turn_end(17),
        b"\xff\n",
        logs.turn_start(18, 2),
        logs.assistant(19, calls=("c1",), turn=2),
        logs.result(20, "c1", turn=2),
        logs.turn_end(21, 2),
    ]
    plan = repaired(b"".join(lines))
    assert (plan.kept, plan.events) == (22, 22)


# Seqs


def test_a_writer_that_went_on_behind_another() -> None:
    """A stale writer's whole conversation behind the end of the log: both are there, neither silently."""
    tail = [logs.event("session/end-seed", 23, {}), logs.event("my/note", 24, {"of": "a"})]
    other = [logs.event("turn/start", 23, {"turn": 3}), *[logs.user(24 + k, f"b{k}") for k in range(9)]]
    other += [logs.turn_end(33, 3)]
    plan = repaired(b"".join([*CLOSED, *tail, *other]))
    assert plan.events == 34
    assert [(fork.divergence, fork.events) for fork in plan.forks] == [(23, 25)]


@pytest.mark.parametrize("start", [99_998, 2**31 - 2, 2**40])
def test_there_is_no_width_at_which_seqs_break(start: int) -> None:
    """Numbers sort as numbers: lines out of order around a power of ten go back."""
    text = b"".join(logs.user(start + k) for k in (1, 0, 2))
    found = salvage(logs.header() + text, session_id="s1")
    assert found.refusal is not None  # nothing fills a hole that large
    few = b"".join([*CLOSED[:1], *[logs.user(k) for k in (0, *range(1, 9), 10, 9, 11)], logs.turn_end(12)])
    assert repaired(few).kept == 13


# Kinds of events


@pytest.mark.parametrize("name", sorted(ROW_TYPES))
def test_no_event_has_the_name_of_a_packed_row_as_its_type(name: str) -> None:
    """A load would read it as a row: neither append nor a seed nor a registration takes it."""
    assert ROW_TYPES.keys() == ROW_NAMES
    session = Session("s1")
    with pytest.raises(InvalidEventError, match="packed row"):
        session.append(name, {"turn": 1})
    assert session.seq == 0
    event = Event.from_dict({"type": name, "seq": 0, "time": 1, "data": {}})
    with pytest.raises(InvalidEventError, match="packed row"):
        Session("s1", seed=[event])
    with pytest.raises(ValueError, match="taken"):
        EventTypes().register(name, Note)


@pytest.mark.parametrize(
    "name", ["session", "", "a\nb", "\ud800", "text-chunks ", "turn/end/", "__proto__", "x" * 9999]
)
async def test_any_other_type_that_append_takes_is_loaded(tmp_path: Path, name: str) -> None:
    """What append accepts, load accepts, beside damage too."""
    async with SessionStore(tmp_path) as store:
        session = await store.create("s1")
        for seq, kind in enumerate([name, "my/note", name]):
            assert session.append(kind, {"type": name, "seq": 0}).seq == seq
        session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
        expected = [event.to_json() for event in session.events]
    path = store.locate("s1")
    assert path is not None
    lines = path.read_bytes().split(b"\n")
    path.write_bytes(b"\n".join([*lines[:2], b"\xff", *lines[2:]]))
    async with SessionStore(tmp_path) as store:
        session = await store.resume("s1", on_damage="salvage")
        assert [event.to_json() for event in session.events] == expected


def test_unknown_events_are_kept_byte_for_byte() -> None:
    """One odd event in a thousand costs nothing, in a repair neither."""
    odd = [
        logs.event("ext/new", 23, {"é": [1.0, 1, True, None]}, extra={"keep": "me"}),
        logs.event("assistant/chunk", 24, {"turn": 1, "step": 1, "chunk": {"type": "new"}}),
        logs.event("todo/write", 25, 5),
    ]
    data = b"".join([*CLOSED, *odd, b"\xff\n", logs.turn_end(26)])
    assert joined(repaired(data).lines) == b"".join([*CLOSED, *odd, logs.turn_end(26)])


@pytest.mark.slow
def test_damage_costs_linear_time_in_lines_and_claims() -> None:
    """Hostile shapes end: many starts, many branches, many repeats, many holes."""
    many = 3_000
    starts = b'{"type":"a","seq":1,"x":' * many
    branches = b"".join(logs.user(18, str(k)) for k in range(many))
    repeats = CLOSED[5] * many
    holes = b"".join(logs.user(23 + 2 * k) for k in range(900))
    for hostile in (starts, branches, repeats, holes, b"}{" * many, b"\0\n" * many, b'{"type":"' * many):
        plan = salvage(b"".join(CLOSED[:12]) + hostile + b"\n" + b"".join(CLOSED[12:]), session_id="s1")
        assert plan.refusal is None or plan.refusal
    assert sys.getrecursionlimit() < 100_000


def test_a_report_never_shows_what_events_say() -> None:
    """Findings and plans name places, not contents."""
    secret = "sk-live-0123456789"
    lines = [
        *CLOSED[:2],
        logs.user(1, secret)[:-20] + b"\n",
        logs.user(1, secret).replace(b'"id":"m1"', b'"id":""'),
        *CLOSED[3:],
    ]
    plan = repaired(b"".join(lines))
    said = " ".join([*plan.describe(), *(finding.describe() for finding in plan.findings)])
    assert secret not in said
    assert secret not in json.dumps([each.reason for each in plan.quarantined])


@pytest.mark.parametrize("name", ["context/message", "prompt/blocked", "my/note"])
def test_a_marker_on_a_type_that_is_none_of_the_surface_is_an_invalid_event(name: str) -> None:
    """Also where a log with such an event would be of a retired form: append raises what it documents."""
    session = Session("s1")
    with pytest.raises(InvalidEventError, match=name):
        session.append(name, {}, surface_op="append")
    with pytest.raises(InvalidEventError, match=name):
        session.append(name, {}, source_event_seqs=[])
    assert session.append(name, {}).seq == 0
