"""The verdict table, the findings, and every bullet of the checklist that is about scanning."""

from __future__ import annotations

import json

import pytest

from sessionstore.recovery.findings import FINDINGS_PER_KIND, Finding, Kind, Verdict
from sessionstore.recovery.scan import LogScanner, ScanResult, scan_log
from tests.recovery import logs
from tests.recovery.logs import closed_log, first_turn, header, interrupted_log, join, line, repeat_line


def scan(*parts: bytes) -> ScanResult:
    """Scan the parts as one log."""
    return scan_log(b"".join(parts))


def kinds(result: ScanResult) -> list[Kind]:
    """The kinds of the findings in order."""
    return [finding.kind for finding in result.findings]


def only(result: ScanResult) -> Finding:
    """The one finding there is."""
    (finding,) = result.findings
    return finding


# Good logs


def test_a_closed_log_is_clean() -> None:
    """Every byte of a finished log is accounted for."""
    data = b"".join(closed_log())
    result = scan(data)
    assert (result.verdict, result.findings) == (Verdict.CLEAN, ())
    assert result.safe_offset == result.size == len(data)
    assert (result.open_turn, result.open_turn_seq) == (None, None)
    assert [event.seq for event in result.events] == list(range(23))
    assert result.surface.nodes == [1, 12, 14, 18, 20]


def test_an_open_turn_is_interrupted() -> None:
    """A log that ends inside a turn is good; the turn is reported with the seq of its start."""
    result = scan(*interrupted_log())
    assert (result.verdict, result.findings) == (Verdict.INTERRUPTED, ())
    assert (result.open_turn, result.open_turn_seq) == (2, 17)


def test_a_header_alone_is_clean() -> None:
    """A session without events is a log all the same."""
    result = scan(header())
    assert (result.verdict, len(result.events)) == (Verdict.CLEAN, 0)
    assert result.header is not None
    assert result.header.id == "s1"
    assert result.header_line == header().rstrip(b"\n")


def test_lines_go_out_as_they_came_in() -> None:
    """The log holds the stored lines byte for byte, packed rows too."""
    lines = closed_log()
    log = scan(*lines).log
    assert [stored + b"\n" for stored in log.lines(0, len(log))] == lines[1:]


def test_a_row_advances_the_seq_by_its_run() -> None:
    """Each member of a packed row takes one seq."""
    result = scan(header(), logs.turn_start(0), logs.row(1, ["a", "b"]), logs.row(3, ["c"]), logs.turn_end(4))
    assert result.verdict is Verdict.CLEAN
    assert len(result.events) == 5


@pytest.mark.parametrize("gap", [2**31, 2**31 + 1, 2**40, -(2**40), 2**53 - 1 - 1_700_000_000_001])
def test_any_time_gap_inside_the_safe_integers_is_accepted(gap: int) -> None:
    """A machine that slept for years, or a clock that went back, is no defect."""
    result = scan(header(), logs.turn_start(0), logs.row(1, ["a", "b"], dt=[gap]))
    assert result.verdict is Verdict.INTERRUPTED
    assert result.events[2].time == 1_700_000_000_001 + gap
    assert scan(header(), logs.turn_start(0), logs.row(1, ["a", "b"], dt=[2**53 - 1_700_000_000_001])).findings


@pytest.mark.parametrize(
    "odd",
    [
        b'{ "type" : "turn/start" , "seq" : 0 , "time" : 5 , "data" : {"turn":1} }\n',
        b'{"data":{"turn":1},"time":5,"seq":0,"type":"turn/start"}\n',
        b'{"type":"turn/start","seq":0.0,"time":5e0,"data":{"turn":1.0}}\n',
        b'{"type":"turn/start","seq":9,"seq":0,"time":5,"data":{"turn":1}}\n',
        b'{"type":"turn/start","seq":0,"time":-5,"data":{"turn":1},"ignorable":true,"later":[1]}\n',
        b'{"type":"turn/start","seq":0,"time":5,"data":{"turn":1,"x":-0.0,"y":1e999,"z":"\\ud83d"}}\n',
        b'{"type":"turn/start","seq":0,"time":5,"data":{"turn":1,"x":' + b"[" * 2000 + b"]" * 2000 + b"}}\n",
        b' {"type":"turn/start","seq":0,"time":5,"data":{"turn":1}} \t\n',
        b'{"\\u0074ype":"turn\\/start","seq":0,"time":5,"data":{"turn":1}}\n',
    ],
    ids=["spaces", "order", "floats", "duplicate", "extra", "numbers", "deep", "around", "escapes"],
)
def test_unusual_spellings_are_accepted_and_kept(odd: bytes) -> None:
    """What JSON allows is read, means the same, and keeps its bytes."""
    result = scan(header(), odd, logs.turn_end(1), logs.turn_start(2, 2))
    assert (result.verdict, result.findings) == (Verdict.INTERRUPTED, ())
    assert list(result.log.lines(0, 1)) == [odd[:-1]]
    assert (result.open_turn, result.open_turn_seq) == (2, 2)
    assert (scan(header(), odd).open_turn, scan(header(), odd).open_turn_seq) == (1, 0)
    assert result.events[0].type == "turn/start"


@pytest.mark.parametrize("odd", ["2e400", "-0.0", "1" * 5000, "[" * 3000 + "]" * 3000])
def test_numbers_and_depth_that_nobody_reads_do_not_matter(odd: str) -> None:
    """A message with a lone surrogate and a value beyond what a reader could hold loads, and keeps its text."""
    message = logs.user(0, "X").replace(b'"X"', b'"\\ud83d","meta":' + odd.encode())
    result = scan(header(), message)
    assert (result.verdict, result.surface.nodes) == (Verdict.CLEAN, [0])
    assert odd.encode() in result.events[0].data_json
    assert result.events[0].to_json() == message[:-1]


def test_unknown_types_are_somebody_elses() -> None:
    """An event of an unknown type with any data is accepted."""
    result = scan(header(), logs.event("acme/odd", 0, None), logs.event("", 1, [{"turn": 1}]))
    assert result.verdict is Verdict.CLEAN


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0c", "\r", "\x1c", "\x0b"])
def test_only_a_newline_separates_lines(separator: str) -> None:
    """Characters that other tools take for line ends are data."""
    text = separator if ord(separator) > 31 else json.dumps(separator)[1:-1]
    body = logs.user(0, "X").replace(b"X", f"a{text}b".encode())
    result = scan(header(), body)
    assert result.verdict is Verdict.CLEAN
    content = result.events[0].to_dict()["data"]["content"]  # type: ignore[index,call-overload]
    assert content == [{"type": "text", "text": f"a{separator}b"}]


# Findings that lose nothing


def test_blank_lines_are_findings_that_lose_nothing() -> None:
    """Blank lines are reported with their place and stop nothing."""
    lines = closed_log()
    result = scan(*logs.insert(logs.insert(lines, 3, b"\n"), 1, b" \t\n"), b"\n")
    assert result.verdict is Verdict.CLEAN
    assert [(f.kind, f.line) for f in result.findings] == [(Kind.BLANK_LINE, n) for n in (2, 5, len(lines) + 3)]
    assert result.findings[0].offset == len(lines[0])
    assert result.safe_offset == result.size
    assert len(result.events) == 23


def test_carriage_returns_are_findings_that_lose_nothing() -> None:
    """A log whose line ends were rewritten is read; the stored lines are without the carriage return."""
    lines = closed_log()
    result = scan(*(text.replace(b"\n", b"\r\n") for text in lines))
    assert result.verdict is Verdict.CLEAN
    assert set(kinds(result)) == {Kind.CARRIAGE_RETURN}
    assert len(result.findings) == len(lines)
    assert [f.line for f in result.findings] == list(range(1, len(lines) + 1))
    assert result.findings[0].offset == len(lines[0]) - 1
    assert [stored + b"\n" for stored in result.log.lines(0, 23)] == lines[1:]
    assert result.header is not None
    assert result.safe_offset == result.size


def test_the_number_of_findings_is_bounded() -> None:
    """Many findings of one kind are counted in one, so that hostile bytes take no memory."""
    result = scan(header(), b"\n" * 1000, logs.turn_start(0), logs.turn_end(1))
    assert result.verdict is Verdict.CLEAN
    assert len(result.findings) == FINDINGS_PER_KIND + 1
    assert "900 of these" in result.findings[-1].message


# Torn


@pytest.mark.parametrize(
    "tail",
    [b"{", b'{"type":"x","seq":23,"time":1,"data":{}}', logs.turn_end(23)[:-1], "é".encode()[:1], b"garbage\xff"],
    ids=["fragment", "complete", "turn-end", "utf8", "garbage"],
)
def test_a_line_without_an_end_is_torn_whatever_it_holds(tail: bytes) -> None:
    """The write of the last line never finished, so its content proves nothing."""
    data = b"".join(closed_log())
    result = scan(data, tail)
    assert (result.verdict, only(result).kind) == (Verdict.TORN, Kind.UNTERMINATED)
    assert (result.safe_offset, result.size) == (len(data), len(data) + len(tail))
    assert (only(result).line, only(result).offset, only(result).length) == (19, len(data), len(tail))
    assert not result.cut_is_blank
    assert len(result.events) == 23


@pytest.mark.parametrize("tail", [b"\0" * 1728, b"\0\n\0", b"  ", b"\0 \r\n\0", b"\n\0"])
def test_a_tail_of_nuls_and_blanks_is_torn_and_blank(tail: bytes) -> None:
    """Space that was reserved and never filled is cut, and nobody needs a copy."""
    data = b"".join(closed_log())
    result = scan(data, tail)
    assert (result.verdict, result.cut_is_blank) == (Verdict.TORN, True)
    assert len(result.events) == 23


def test_a_torn_record_before_nuls_is_torn_and_not_blank() -> None:
    """A record that was cut by a block of NULs is kept aside."""
    result = scan(*closed_log(), b'{"type":"tu' + b"\0" * 501)
    assert (result.verdict, result.cut_is_blank) == (Verdict.TORN, False)


def test_a_live_writers_unterminated_tail_is_no_finding() -> None:
    """A reader beside a writer sees a write in progress as what it is."""
    scanner = LogScanner()
    data = b"".join(interrupted_log())
    scanner.feed(data + b'{"type":')
    result = scanner.finish(live=True)
    assert (result.verdict, result.findings) == (Verdict.INTERRUPTED, ())
    assert (result.safe_offset, result.size) == (len(data), len(data) + 8)


def test_a_live_writer_does_not_excuse_a_defect() -> None:
    """Only the unterminated tail belongs to the writer; a bad line before it is torn."""
    scanner = LogScanner()
    scanner.feed(b"".join(interrupted_log()) + b"garbage\n{")
    assert scanner.finish(live=True).verdict is Verdict.TORN


DEFECTS = {
    "garbage": (b"garbage\n", Kind.BAD_JSON),
    "bytes": (b"\xff\xfe garbage\n", Kind.BAD_UTF8),
    "bad utf-8": (logs.user(17).replace(b"hi", b"h\xff"), Kind.BAD_UTF8),
    "surrogate bytes": (logs.user(17).replace(b"hi", b"\xed\xa0\x80"), Kind.BAD_UTF8),
    "nan": (logs.event("x", 17, 0).replace(b'"data":0', b'"data":NaN'), Kind.BAD_JSON),
    "array": (b"[1]\n", Kind.NOT_A_RECORD),
    "string": (b'"turn/end"\n', Kind.NOT_A_RECORD),
    "null": (b"null\n", Kind.NOT_A_RECORD),
    "no seq": (line({"type": "x", "time": 1, "data": {}}), Kind.NOT_A_RECORD),
    "seq string": (line({"type": "x", "seq": "17", "time": 1, "data": {}}), Kind.NOT_A_RECORD),
    "seq true": (line({"type": "x", "seq": True, "time": 1, "data": {}}), Kind.NOT_A_RECORD),
    "seq fraction": (line({"type": "x", "seq": 17.5, "time": 1, "data": {}}), Kind.NOT_A_RECORD),
    "nul line": (b"\0" * 40 + b"\n", Kind.NUL_BLOCK),
    "nuls before": (b"\0" * 40 + logs.user(17), Kind.NUL_BLOCK),
    "nuls within": (logs.user(17).replace(b"hi", b"\0" * 9), Kind.NUL_BLOCK),
    "fused": (logs.user(17)[:-1] + logs.user(18), Kind.FUSED),
    "torn prefix": (logs.user(17)[:30] + logs.user(17), Kind.FUSED),
    "split string": (logs.user(17, "a\\nb").replace(b"\\\\n", b"\n"), Kind.BAD_JSON),
    "too deep": (logs.event("x", 17, 0).replace(b":0}", b":" + b"[" * 20000 + b"]" * 20000 + b"}"), Kind.BAD_JSON),
    "gap": (logs.user(18), Kind.SEQ_GAP),
    "repeat": (logs.user(16), Kind.SEQ_REPEAT),
    "rewind": (logs.user(3), Kind.SEQ_REWIND),
    "second header": (header(), Kind.EXTRA_HEADER),
    "row gap": (logs.row(18, ["a", "b"]), Kind.SEQ_GAP),
    "row dt": (logs.row(17, ["a", "b"], dt=[1, 2]), Kind.BAD_ROW),
    "row empty": (logs.row(17, ["a"], texts=[], dt=[]), Kind.BAD_ROW),
    "row key": (logs.row(17, ["a", "b"], extra=1), Kind.BAD_ROW),
    "row member": (logs.row(17, ["a", "b"], texts=["a", 1]), Kind.BAD_ROW),
    "row gap fraction": (logs.row(17, ["a", "b"], dt=[0.5]), Kind.BAD_ROW),
    "row time unsafe": (logs.row(17, ["a", "b"], dt=[2**53]), Kind.BAD_ROW),
    "row seq string": (line({"type": "text-chunks", "seq0": "17", "time0": 1, "data": {}}), Kind.BAD_ROW),
    "row data": (line({"type": "text-chunks", "seq0": 17, "time0": 1, "data": 0}), Kind.BAD_ROW),
    "tool row without id": (line({**json.loads(logs.tool_row(17, ["a"])), "data": {"turn": 1, "step": 1, "index": 0,
                             "dt": [], "args": ["a"]}}), Kind.BAD_ROW),
}  # fmt: skip


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_with_no_turn_end_after_it_is_torn(name: str) -> None:
    """A bad line behind the last ``turn/end`` is what a crash leaves; the prefix is kept."""
    bad, kind = DEFECTS[name]
    good = b"".join([header(), *first_turn()])
    result = scan(good, bad, logs.event("x", 90, {}))
    assert result.verdict is Verdict.TORN
    finding = result.findings[0]
    assert (finding.kind, finding.line, finding.offset) == (kind, 13, len(good))
    assert finding.length == len(bad.split(b"\n")[0])
    assert finding.expected_seq == 17
    assert result.safe_offset == len(good)
    assert len(result.events) == 17
    assert result.cut_is_blank is False


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_with_a_turn_end_after_it_is_damaged(name: str) -> None:
    """A ``turn/end`` proves that the bytes before it were durable once: then bad bytes are damage."""
    bad, kind = DEFECTS[name]
    good = b"".join([header(), *first_turn()])
    result = scan(good, bad, logs.turn_end(18, 2))
    assert (result.verdict, result.findings[0].kind) == (Verdict.DAMAGED, kind)
    assert len(result.events) == 17


def test_a_lost_line_is_damage_when_a_turn_end_follows_the_hole() -> None:
    """The ``turn/end`` that shows the hole proves that what is missing was there."""
    lines = interrupted_log()
    for lost in range(1, 11):
        result = scan(*logs.drop_line(lines, lost))
        assert result.verdict is Verdict.DAMAGED, lost
        assert result.findings[0].line == lost + 1
    assert scan(*logs.drop_line(lines, 12)).verdict is Verdict.TORN


@pytest.mark.parametrize("index", range(1, 11))
def test_a_fused_line_before_a_turn_end_is_damaged(index: int) -> None:
    """Two records on one line are damage when a ``turn/end`` stands behind the lost line end, on the same line too."""
    result = scan(*join([header(), *first_turn()], index))
    assert (result.verdict, result.findings[0].line) == (Verdict.DAMAGED, index + 1)


def test_a_turn_end_behind_nuls_on_its_line_proves_as_much() -> None:
    """A ``turn/end`` that was written behind a hole says that the hole was not one."""
    lines = interrupted_log()
    result = scan(*lines, b"\0" * 100 + logs.turn_end(22, 2))
    assert (result.verdict, only(result).kind) == (Verdict.DAMAGED, Kind.NUL_BLOCK)


@pytest.mark.parametrize(
    "data",
    [{"type": "turn/end"}, {"copy": {"type": "turn/end", "seq": 1, "time": 1, "data": {}}}, '{"type":"turn/end"'],
)
def test_a_turn_end_inside_other_data_proves_nothing(data: object) -> None:
    """Only a record of its own is evidence, not a copy inside a payload or a string."""
    bad = logs.event("x", 99, data)
    assert scan(header(), *first_turn(), bad).verdict is Verdict.TORN
    assert scan(header(), *first_turn(), b"\0" + bad).verdict is Verdict.TORN


def test_a_defect_after_the_last_turn_end_keeps_what_stands_before() -> None:
    """Scanning goes on behind a defect and counts what is intact, rows by their members."""
    result = scan(header(), *first_turn(), b"bad\n", logs.user(18), logs.row(19, ["a", "b"]), b"worse\n")
    assert (result.verdict, result.intact_after) == (Verdict.TORN, 3)
    assert [(f.kind, f.line) for f in result.findings] == [(Kind.BAD_JSON, 13), (Kind.BAD_JSON, 16)]


def test_an_exact_repeat_is_not_counted_as_lost() -> None:
    """A line that the log already holds loses nothing when it is cut."""
    lines = interrupted_log()
    result = scan(*repeat_line(lines, len(lines) - 1))
    assert (result.verdict, only(result).kind, result.intact_after) == (Verdict.TORN, Kind.SEQ_REPEAT, 0)


def test_a_gap_in_the_tail_drops_the_whole_row() -> None:
    """A packed row is kept or dropped whole."""
    result = scan(header(), *first_turn(), logs.row(16, ["old", "new"]))
    assert (result.verdict, len(result.events)) == (Verdict.TORN, 17)
    assert (only(result).expected_seq, only(result).actual_seq) == (17, 16)


def test_jumps_behind_the_first_defect_are_listed_too() -> None:
    """The findings show the extent of the damage, not only where it begins."""
    result = scan(header(), *first_turn(), logs.user(18), logs.user(19), logs.user(25), logs.turn_end(26))
    jumps = [(f.kind, f.expected_seq, f.actual_seq) for f in result.findings]
    assert jumps == [(Kind.SEQ_GAP, 17, 18), (Kind.SEQ_GAP, 20, 25)]


# Headers


@pytest.mark.parametrize("data", [b"", b"\n", b"\n \n\t", b"\0" * 100, b"\0\n\0", header()[:-1], header()[:20], b"{"])
def test_a_log_that_was_never_begun_is_empty(data: bytes) -> None:
    """No bytes, blanks or NULs, or an unterminated first line: nothing was ever stored."""
    result = scan(data)
    assert (result.verdict, result.header, len(result.events)) == (Verdict.EMPTY, None, 0)
    assert result.size == len(data)


def test_a_lost_header_is_damage_and_the_events_stay_readable() -> None:
    """Without its header a log is refused even if no turn ends, and its events are shown."""
    result = scan(logs.turn_start(0), logs.user(1))
    assert (result.verdict, only(result).kind) == (Verdict.DAMAGED, Kind.NO_HEADER)
    assert (result.header, len(result.events)) == (None, 2)


@pytest.mark.parametrize(
    ("first", "kind"),
    [
        (header()[:20] + b"\n", Kind.BAD_HEADER),
        (b"\xef\xbb\xbf" + header(), Kind.BYTE_ORDER_MARK),
        (b"\0" * 8 + header(), Kind.NUL_BLOCK),
        (header(createdAt=1.5), Kind.BAD_HEADER),
        (header(createdAt=-1), Kind.BAD_HEADER),
        (header(createdAt=2**53), Kind.BAD_HEADER),
        (header(createdAt=None), Kind.BAD_HEADER),
        (header().replace(b'"createdAt":1700000000000', b'"createdAt":-0'), Kind.BAD_HEADER),
        (header(delegationDepth="0"), Kind.BAD_HEADER),
        (header(delegationDepth=0.5), Kind.BAD_HEADER),
        (header(delegationDepth=-1), Kind.BAD_HEADER),
        (header().replace(b'"delegationDepth":0', b'"delegationDepth":-0'), Kind.BAD_HEADER),
        (header(agentPreset=7), Kind.BAD_HEADER),
        (header(id=""), Kind.BAD_HEADER),
        (header(cwd="relative"), Kind.BAD_HEADER),
        (header(type="other"), Kind.BAD_HEADER),
        (b"[]\n", Kind.BAD_HEADER),
        (b"hello\n", Kind.BAD_HEADER),
    ],
)
def test_a_broken_header_is_damage(first: bytes, kind: Kind) -> None:
    """A first line that is complete and no header is damage even in a log without turns."""
    for rest in (b"", logs.turn_start(0) + logs.turn_end(1)):
        result = scan(first, rest)
        assert (result.verdict, only(result).kind, only(result).line) == (Verdict.DAMAGED, kind, 1)
        assert len(result.events) == (2 if rest else 0)


@pytest.mark.parametrize("junk", [b"\xef\xbb\xbf", b"\0\0"])
def test_a_header_behind_junk_is_still_understood(junk: bytes) -> None:
    """What the header says is known, so a repair need not ask."""
    result = scan(junk + header())
    assert result.header is not None
    assert result.header.id == "s1"


def test_a_header_without_depth_is_read_as_zero() -> None:
    """Old logs do not write ``delegationDepth``."""
    result = scan(header(delegationDepth=None))
    assert (result.verdict, result.header and result.header.delegation_depth) == (Verdict.CLEAN, 0)


def test_an_agent_preset_round_trips() -> None:
    """Optional header fields are read, unknown ones kept."""
    first = header(agentPreset="coder", later={"x": 1})
    result = scan(first)
    assert result.header is not None
    assert (result.header.agent_preset, result.header.to_json()) == ("coder", first[:-1])


def test_a_long_header_is_read() -> None:
    """A header has no limit of its own."""
    assert scan(header(agentPreset="x" * 100_000)).verdict is Verdict.CLEAN


@pytest.mark.parametrize("version", [1, 999, -1])
def test_another_version_is_unsupported_before_anything_else(version: int) -> None:
    """The version decides before the rest of the header and of the log is even looked at."""
    result = scan(line({"type": "session", "version": version}), b"garbage\n", logs.turn_end(7), b"\0\0")
    assert (result.verdict, only(result).kind) == (Verdict.UNSUPPORTED, Kind.UNSUPPORTED)
    assert result.unsupported is not None
    assert result.unsupported.direction == ("newer" if version > 0 else "older")
    assert len(result.events) == 0


@pytest.mark.parametrize("key", ["sandboxMode", "approvalPolicy"])
def test_a_retired_header_field_is_unsupported(key: str) -> None:
    """Retired header fields are refused as such, not as damage."""
    result = scan(header(**{key: "x"}))
    assert result.verdict is Verdict.UNSUPPORTED
    assert result.unsupported is not None
    assert result.unsupported.direction == "retired"


def test_line_numbers_count_what_an_editor_shows() -> None:
    """Blank lines before the header count, too."""
    result = scan(b"\n", header(), b"bad\n")
    assert [(f.kind, f.line) for f in result.findings] == [(Kind.BLANK_LINE, 1), (Kind.BAD_JSON, 3)]


# Invalid and retired events

INVALID = {
    "no marker": (logs.user(1, surfaceOp=None).replace(b',"surfaceOp":null', b""), "$.surfaceOp"),
    "null marker": (logs.user(1, surfaceOp=None), "$.surfaceOp"),
    "marker on log-only": (logs.event("x", 1, {}, surfaceOp="append"), None),
    "sources on log-only": (logs.event("x", 1, {}, sourceEventSeqs=[0]), None),
    "source not earlier": (logs.user(1, sourceEventSeqs=[1]), "$.sourceEventSeqs[0]"),
    "source twice": (logs.user(1, sourceEventSeqs=[0, 0]), "$.sourceEventSeqs[1]"),
    "source negative": (logs.user(1, sourceEventSeqs=[-1]), "$.sourceEventSeqs[0]"),
    "sources empty": (logs.user(1, sourceEventSeqs=[]), "$.sourceEventSeqs"),
    "replace nothing": (logs.user(1, surfaceOp={"op": "replace", "start": 0, "end": 0}, sourceEventSeqs=[0]),
                        "$.surfaceOp.start"),
    "message without id": (logs.user(1).replace(b'"id":"m1"', b'"id":""'), "$.id"),
    "message role": (logs.user(1).replace(b'"role":"user"', b'"role":"system"'), "$.role"),
    "assistant source": (logs.assistant(1).replace(b'"kind":"model"', b'"kind":"user"'), "$.message.source.kind"),
    "result block": (logs.result(1, "c").replace(b'"tool-result"', b'"text"'), None),
    "result of another call": (logs.result(1, "c").replace(b'"toolCallId":"c"', b'"toolCallId":"d"'), None),
    "no time": (line({"type": "x", "seq": 1, "data": {}}), "$"),
    "no data": (line({"type": "x", "seq": 1, "time": 1}), "$"),
    "type number": (line({"type": 7, "seq": 1, "time": 1, "data": {}}), "$.type"),
    "time fraction": (line({"type": "x", "seq": 1, "time": 1.5, "data": {}}), "$.time"),
    "time unsafe": (line({"type": "x", "seq": 1, "time": 2**53, "data": {}}), "$.time"),
    "no provider": (logs.event("request/header", 1, {"reason": "initial", "header": {"config": {"model": "m"}}}),
                    "$.header.config.provider"),
}  # fmt: skip


@pytest.mark.parametrize("name", INVALID)
def test_an_event_that_breaks_a_seed_rule_is_invalid_and_stays_visible(name: str) -> None:
    """The finding names line, seq and path; the event keeps its place and its bytes, and reading goes on."""
    bad, path = INVALID[name]
    result = scan(header(), logs.turn_start(0), bad, logs.turn_end(2))
    assert result.verdict is Verdict.INVALID
    finding = only(result)
    assert (finding.kind, finding.line, finding.actual_seq) == (Kind.INVALID_EVENT, 3, 1)
    assert "seq 1" in finding.message
    if path is not None:
        assert finding.path == path
    assert [event.seq for event in result.events] == [0, 1, 2]
    assert result.events[1].to_json() == bad[:-1]
    assert result.safe_offset == result.size


def test_a_bad_message_keeps_its_place_on_the_surface() -> None:
    """One broken message must not make the replacement of it look broken, too."""
    op = {"op": "replace", "start": 0, "end": 0}
    bad = logs.user(0).replace(b'"id":"m0"', b'"id":""')
    result = scan(header(), bad, logs.user(1, surfaceOp=op, sourceEventSeqs=[0]))
    assert len(result.findings) == 1
    assert result.surface.nodes == [1]


RETIRED = {
    "mode/set": logs.event("mode/set", 1, {"mode": "x"}),
    "request/header-delta": logs.event("request/header-delta", 1, {}),
    "fallback": logs.event(
        "request/header", 1, {"reason": "fallback", "header": {"config": {"provider": "p", "model": "m"}}}
    ),
    "context/message": logs.event("context/message", 1, {"content": [], "source": {}}, surfaceOp="append"),
    "prompt/blocked": logs.event("prompt/blocked", 1, {}, surfaceOp="append"),
}


@pytest.mark.parametrize("name", RETIRED)
def test_a_retired_form_is_unsupported_not_damaged(name: str) -> None:
    """Retired events are intact; the log is refused and says so."""
    result = scan(header(), logs.turn_start(0), RETIRED[name], logs.turn_end(2))
    assert (result.verdict, only(result).kind, only(result).line) == (Verdict.UNSUPPORTED, Kind.UNSUPPORTED, 3)
    assert result.unsupported is not None
    assert result.unsupported.direction == "retired"
    assert len(result.events) == 3


def test_which_verdict_wins() -> None:
    """Damaged beats unsupported events, those beat invalid ones, and those beat torn."""
    retired, invalid, torn = RETIRED["mode/set"], logs.event("x", 2, {}, surfaceOp="append"), b"{"
    start = [header(), logs.turn_start(0)]
    assert scan(*start, retired, invalid, b"bad\n", logs.turn_end(9)).verdict is Verdict.DAMAGED
    assert scan(*start, retired, invalid, torn).verdict is Verdict.UNSUPPORTED
    assert scan(*start, logs.event("x", 1, {}, surfaceOp="append"), torn).verdict is Verdict.INVALID
    assert scan(*start, torn).verdict is Verdict.TORN


# Limits and pieces


@pytest.mark.parametrize("size", [1, 7, 64, 10_000])
def test_a_line_beyond_the_limit_is_a_defect_and_is_not_kept(size: int) -> None:
    """A line that is too long is counted, not held, however it arrives."""
    good = b"".join([header(), logs.turn_start(0)])
    limit = max(len(piece) for piece in good.split(b"\n"))
    data = good + b"x" * (limit + 1) + b"\n" + logs.event("y", 1, 1)
    scanner = LogScanner(max_line=limit)
    for at in range(0, len(data), size):
        scanner.feed(data[at : at + size])
    result = scanner.finish()
    assert (result.verdict, only(result).kind, only(result).length) == (Verdict.TORN, Kind.TOO_LONG, limit + 1)
    assert (result.safe_offset, result.intact_after, result.cut_is_blank) == (len(good), 1, False)


def test_a_line_of_exactly_the_limit_is_accepted() -> None:
    """The scanner accepts all that the writer may write."""
    data = b"".join([header(), logs.event("x", 0, "y" * 500)])
    limit = len(data.split(b"\n")[1])
    scanner = LogScanner(max_line=limit)
    scanner.feed(data)
    assert scanner.finish().verdict is Verdict.CLEAN


def test_a_huge_tail_of_nuls_is_blank_and_not_held() -> None:
    """Unfilled space beyond the limit of a line is still only blank."""
    scanner = LogScanner(max_line=200)
    scanner.feed(header() + logs.turn_start(0) + b"\0" * 1000)
    result = scanner.finish()
    assert (result.verdict, only(result).kind, result.cut_is_blank) == (Verdict.TORN, Kind.BLANK_TAIL, True)


def test_a_first_line_beyond_the_limit_is_no_header() -> None:
    """A log that begins with an endless line has no header; without its end it was never begun."""
    scanner = LogScanner(max_line=10)
    scanner.feed(header())
    assert scanner.finish().verdict is Verdict.DAMAGED
    scanner = LogScanner(max_line=10)
    scanner.feed(header()[:-1])
    assert scanner.finish().verdict is Verdict.EMPTY


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_any_bytes_like_piece_is_taken(kind: type) -> None:
    """A decoder may reuse its buffer: the scanner keeps a copy."""
    buffer = bytearray(b"".join(closed_log()))
    scanner = LogScanner()
    scanner.feed(kind(buffer))
    scanner.feed(b"")
    for at in range(len(buffer)):
        buffer[at] = 0
    assert scanner.finish().verdict is Verdict.CLEAN


# Messages


def test_findings_say_where_and_what_and_never_the_contents() -> None:
    """A description has line, byte and one sentence, and nothing of what users wrote."""
    secret = logs.user(17, "hunter2")
    for bad in (
        secret[:-9] + b"\n",
        b"\0" + secret,
        secret + secret,
        b"hunter2\n",
        secret.replace(b'"role"', b'"rule"'),
    ):
        result = scan(header(), *first_turn(), bad)
        assert result.findings
        for finding in result.findings:
            assert finding.describe().startswith(f"line {finding.line}, byte {finding.offset}: ")
            assert "hunter2" not in finding.describe()


def test_checks_stop_costing_when_everything_fails() -> None:
    """Behind a hundred refused events no further replacement is compared with what it names; reading goes on."""
    big = logs.result(0, "c", text="x" * 1000)
    op = {"op": "replace", "start": 0, "end": 0}
    bad = [logs.result(n, "d", surfaceOp=op, sourceEventSeqs=[0]) for n in range(1, 300)]
    result = scan(header(), big, *bad, logs.turn_start(300))
    assert result.verdict is Verdict.INVALID
    assert len(result.findings) == FINDINGS_PER_KIND
    assert (len(result.events), result.open_turn) == (301, 1)


def test_a_repeat_inside_a_long_row_is_found_without_reading_the_row() -> None:
    """Lines that rewind into a packed row are counted as other events, each at its own cost."""
    rewinds = [logs.user(n) for n in range(3, 8)]
    result = scan(header(), logs.row(0, ["t"] * 10), *rewinds)
    assert (result.verdict, result.intact_after) == (Verdict.TORN, 5)
