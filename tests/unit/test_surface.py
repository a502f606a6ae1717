"""The surface: a slow obvious model, the order of the checks, and that a refused candidate changes nothing."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.errors import InvalidEventError, SessionStoreError, UnsupportedFormatError
from sessionstore.events import Event, Replace
from sessionstore.lossless import MAX_SAFE
from sessionstore.surface import (
    Change,
    Replacement,
    Surface,
    SurfaceView,
    check_sources,
    fold_surface,
    parse_sources,
    parse_surface_op,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

ELIGIBLE = ("user/message", "assistant/message", "tool/result", "steering/message")
NO_OP: Any = object()
EMPTY_OR_ABSENT: tuple[Any, ...] = ([], NO_OP)
ODD_SEQS: tuple[Any, ...] = (-1, 0.5, -0.0, MAX_SAFE + 1, 1e300, True, "0", None, [0])
ODD_OPERATIONS: tuple[Any, ...] = (None, "prepend", "replace", "", 0, True, b"append", ["append"], {}, {"op": "append"})


def event(type_: str, seq: int, op: Any = NO_OP, sources: Any = NO_OP, data: Any = None) -> Event:
    """An event whose envelope holds exactly what is given."""
    value: dict[str, Any] = {"type": type_, "seq": seq, "time": 0, "data": {} if data is None else data}
    if sources is not NO_OP:
        value["sourceEventSeqs"] = sources
    if op is not NO_OP:
        value["surfaceOp"] = op
    return Event.from_dict(value)


def replace(start: Any, end: Any) -> dict[str, Any]:
    """A replacement as it stands in a log."""
    return {"op": "replace", "start": start, "end": end}


def user(seq: int, op: Any = "append", sources: Any = NO_OP) -> Event:
    """A user message, whose payload the surface does not look at."""
    return event("user/message", seq, op, sources)


def result(seq: int, op: Any = "append", sources: Any = NO_OP, **changes: Any) -> Event:
    """A tool result; ``changes`` by dotted path into its payload, ``...`` takes a key out."""
    data: dict[str, Any] = {
        "turn": 1,
        "step": 1,
        "message": {
            "source": {"kind": "tool", "callId": "c"},
            "content": [{"type": "tool-result", "toolCallId": "c", "content": [], "isError": False}],
            "role": "user",
            "id": "m",
        },
        "error": {"name": "E", "code": "C"},
        "meta": {"a": [1, {"b": 2}], "c": "x"},
    }
    for path, value in changes.items():
        *parents, key = path.split("__")
        target: Any = data
        for parent in parents:
            target = target["content"][0] if parent == "block" else target[parent]
        if value is ...:
            del target[key]
        else:
            target[key] = value
    return event("tool/result", seq, op, sources, data)


def grow(events: Sequence[Event]) -> Surface:
    """The surface after ``events``, which stand at their seqs."""
    surface = Surface()
    by_seq = {one.seq: one for one in events}
    for one in events:
        surface.commit(surface.check(one, by_seq.__getitem__))
    return surface


def message_of(call: Callable[[], object]) -> str:
    """The message of the error that ``call`` raises."""
    with pytest.raises(SessionStoreError) as caught:
        call()
    return str(caught.value)


# --- a slow, obvious model


class RefusedError(Exception):
    """The model does not take this candidate."""


class Model:
    """What section 4 of the session model says, word by word and without any speed."""

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.generation = 0
        self.types: dict[int, str] = {}

    def take(self, type_: str, seq: int, op: Any, sources: Any) -> str | None:
        """Take a candidate, or say in a word why not."""
        try:
            self._take(type_, seq, op, sources)
        except RefusedError as refused:
            return str(refused)
        return None

    def _take(self, type_: str, seq: int, op: Any, sources: Any) -> None:
        if type_ not in ELIGIBLE:
            if op is not NO_OP or sources is not NO_OP:
                raise RefusedError("log-only")
            return
        shadowed: list[int] = []
        at = len(self.nodes)
        if op != "append":
            if op is NO_OP:
                raise RefusedError("no marker")
            at, end = self._where(op["start"], "start"), self._where(op["end"], "end")
            if at > end:
                raise RefusedError("order")
            shadowed = self.nodes[at : end + 1]
        self._cite(type_, seq, sources)
        for node in shadowed:
            if sources is NO_OP or node not in sources:
                raise RefusedError("coverage")
        if shadowed and type_ == "tool/result" and (len(shadowed) != 1 or self.types[shadowed[0]] != "tool/result"):
            raise RefusedError("rewrite")
        self.nodes = [*self.nodes[:at], seq, *self.nodes[at + len(shadowed) :]]
        self.generation += bool(shadowed)
        self.types[seq] = type_

    def _where(self, node: int, which: str) -> int:
        if node not in self.nodes:
            raise RefusedError(which)
        return self.nodes.index(node)

    def _cite(self, type_: str, seq: int, sources: Any) -> None:
        if sources is NO_OP:
            return
        if not sources and type_ != "assistant/message":
            raise RefusedError("empty")
        for index, source in enumerate(sources):
            if source in sources[:index]:
                raise RefusedError("twice")
        for source in sources:
            if source >= seq:
                raise RefusedError("not earlier")


REASONS = {
    "log-only": "neither",
    "no marker": "needs a surface operation",
    "start": "starts at",
    "end": "ends at",
    "order": "stands after",
    "empty": "empty list",
    "twice": "cited twice",
    "not earlier": "not an earlier event",
    "coverage": "is missing",
    "rewrite": "a tool result replaces",
}


numbers = st.integers(0, 99)
programs = st.lists(st.tuples(numbers, numbers, numbers, numbers, st.lists(numbers, max_size=3)), max_size=25)


def candidate_of(model: Model, seq: int, step: tuple[int, int, int, int, list[int]]) -> tuple[Event, str, Any, Any]:
    """An event for a log that stands as ``model`` does: most often one that fits, else one that nearly does."""
    kind, how, first, last, cited = step
    type_ = (*ELIGIBLE, *ELIGIBLE, "todo/write")[kind % 9]
    spoiled = how % 5 == 4
    sources: Any = [source % (seq + 2) for source in cited]
    if not spoiled:
        sources = sorted({source for source in sources if source < seq}, reverse=True)
    if type_ == "todo/write":
        return (
            (event(type_, seq, "append"), type_, "append", NO_OP)
            if spoiled
            else (event(type_, seq), type_, NO_OP, NO_OP)
        )
    op: Any = NO_OP if spoiled and kind % 2 else "append"
    sources = sources or (sources if type_ == "assistant/message" or spoiled else NO_OP)
    if len(model.nodes) > 1 and how % 2:
        first, last = first % len(model.nodes), last % len(model.nodes)
        if how % 3:
            first, last = sorted((first, last))
        shadowed = model.nodes[first : last + 1]
        op = replace(first, last) if how % 7 == 6 else replace(model.nodes[first], model.nodes[last])
        extra = [] if sources is NO_OP else sources
        sources = (shadowed[::-1], sorted({*shadowed, *extra}), shadowed[1:] or NO_OP, [*shadowed, *extra])[
            kind // 9 % 4
        ]
    build = result if type_ == "tool/result" else partial(event, type_)
    return build(seq, op, sources), type_, op, sources


@given(programs)
def test_the_surface_agrees_with_the_model(program: list[tuple[int, int, int, int, list[int]]]) -> None:
    """Any mix of good and bad candidates is accepted and refused as the model does, for the same reasons."""
    model, surface = Model(), Surface()
    log: list[Event] = []
    for step in program:
        candidate, type_, op, sources = candidate_of(model, len(log), step)
        before = (surface.nodes.copy(), surface.replace_generation)
        refusal = model.take(type_, len(log), op, sources)
        if refusal is not None:
            said = message_of(partial(surface.check, candidate, log.__getitem__))
            assert REASONS[refusal] in said
            assert said == message_of(partial(fold_surface, [*log, candidate]))
            assert before == (surface.nodes, surface.replace_generation)
            continue
        change = surface.check(candidate, log.__getitem__)
        assert before == (surface.nodes, surface.replace_generation)
        twin = surface.copy()
        surface.commit(change)
        assert before == (twin.nodes, twin.replace_generation)
        twin.commit(twin.check(candidate, log.__getitem__))
        assert (twin.nodes, twin.replace_generation) == (surface.nodes, surface.replace_generation)
        surface = twin if len(log) % 2 else surface
        log.append(candidate)
        assert surface.nodes == model.nodes
        assert surface.replace_generation == model.generation
    folded = fold_surface(log)
    assert list(folded.nodes) == model.nodes
    assert len(folded.replacements) == model.generation


# --- append and replace


def test_an_empty_log_has_an_empty_surface() -> None:
    """Nothing in, nothing out."""
    assert fold_surface([]) == fold_surface([event("turn/start", 0)])
    assert fold_surface([]).nodes == ()


def test_events_append_in_order_and_log_only_ones_do_not_show() -> None:
    """Only eligible types become nodes."""
    log = [user(0), event("turn/start", 1), event("assistant/message", 2, "append", []), event("x/y", 3), result(4)]
    assert fold_surface(log).nodes == (0, 2, 4)


def test_a_replacement_takes_the_place_of_its_slice() -> None:
    """The new node stands where the old ones stood, not at the end."""
    log = [user(0), user(1), user(2), user(3), user(4, replace(1, 2), [1, 2])]
    folded = fold_surface(log)
    assert folded.nodes == (0, 4, 3)
    assert folded.replacements == (Replacement(4, 1, 2, (1, 2)),)
    assert grow(log).replace_generation == 1


def test_positions_count_and_not_numbers() -> None:
    """After a replacement a larger seq may stand before a smaller one."""
    log = [user(0), user(1), user(2, replace(0, 0), [0])]
    assert fold_surface([*log, user(3, replace(2, 1), [1, 2])]).nodes == (3,)
    with pytest.raises(InvalidEventError, match="node 1 stands after node 2"):
        fold_surface([*log, user(3, replace(1, 2), [1, 2])])


def test_replacements_nest() -> None:
    """A replacement may be replaced, alone or with its neighbours."""
    log = [user(n) for n in range(5)]
    log += [user(5, replace(1, 3), [3, 2, 1]), user(6, replace(5, 5), [5]), user(7, replace(0, 6), [6, 0])]
    assert fold_surface(log).nodes == (7, 4)
    assert [r.shadowed_seqs for r in fold_surface(log).replacements] == [(1, 2, 3), (5,), (0, 6)]


@pytest.mark.parametrize("by", ELIGIBLE[:2] + ELIGIBLE[3:])
@pytest.mark.parametrize("old", ELIGIBLE)
def test_any_type_may_replace_any_other(by: str, old: str) -> None:
    """Only tool results are bound to their own kind."""
    assert fold_surface([event(old, 0, "append"), event(by, 1, replace(0, 0), [0])]).nodes == (1,)


def test_shadowed_nodes_are_gone() -> None:
    """A node that was replaced cannot be named again."""
    log = [user(0), user(1), user(2, replace(0, 0), [0])]
    with pytest.raises(InvalidEventError, match="starts at 0") as start:
        fold_surface([*log, user(3, replace(0, 1), [0, 1])])
    with pytest.raises(InvalidEventError, match="ends at 0") as end:
        fold_surface([*log, user(3, replace(2, 0), [0, 1])])
    assert (start.value.path, end.value.path) == ("$.surfaceOp.start", "$.surfaceOp.end")


def test_the_checks_of_a_replacement_come_in_their_order() -> None:
    """A candidate with every fault names them one after the other, as they are mended."""
    log = [user(0), event("turn/start", 1), user(2), user(3)]
    steps: list[tuple[Any, Any, str]] = [
        (replace(1, 1), [True], "starts at 1"),
        (replace(3, 1), [True], "ends at 1"),
        (replace(3, 0), [True], "stands after"),
        (replace(0, 3), [0, 0, True, 9], "expected a seq"),
        (replace(0, 3), [0, 0, 9], "cited twice"),
        (replace(0, 3), [0, 9], "9 is not an earlier event"),
        (replace(0, 3), [0, 3], "2 is missing"),
        (replace(0, 3), [0, 2, 3], "replaces one node, not 3"),
        (replace(0, 0), [0], "not node 0"),
    ]
    for op, sources, said in steps:
        with pytest.raises(InvalidEventError, match=said) as caught:
            fold_surface([*log, result(4, op, sources)])
        assert (caught.value.seq, caught.value.event_type) == (4, "tool/result")


def test_a_fold_needs_contiguous_seqs() -> None:
    """A log with a hole, or one that does not begin at 0, has no surface."""
    for log in ([user(1)], [user(0), user(2)], [user(0), user(0)]):
        with pytest.raises(InvalidEventError, match="expected seq") as caught:
            fold_surface(log)
        assert caught.value.path == "$.seq"


def test_an_eligible_event_needs_its_marker() -> None:
    """A message without a surface operation is no message."""
    for type_ in ELIGIBLE:
        with pytest.raises(InvalidEventError, match="needs a surface operation") as caught:
            fold_surface([event(type_, 0)])
        assert caught.value.path == "$.surfaceOp"


@pytest.mark.parametrize(
    ("op", "sources"), [("append", NO_OP), (NO_OP, []), ("odd", NO_OP), (NO_OP, "odd"), (None, None)]
)
def test_log_only_types_carry_no_marker(op: Any, sources: Any) -> None:
    """A marker of whatever shape on another type is refused; on an old surface type it is a retired form."""
    with pytest.raises(InvalidEventError, match="neither"):
        fold_surface([event("turn/start", 0, op, sources)])
    for type_ in ("context/message", "prompt/blocked"):
        with pytest.raises(UnsupportedFormatError, match=type_) as caught:
            fold_surface([event(type_, 0, op, sources)])
        assert caught.value.direction == "retired"
        assert fold_surface([event(type_, 0)]).nodes == ()


def test_many_replacements_of_a_long_surface_are_quick() -> None:
    """Finding a node does not walk the surface: 20,000 one-node replacements of 20,000 nodes (a walk needs minutes)."""
    surface = Surface()
    count = 20_000
    for seq in range(count):
        surface.append_fast(seq)
    for seq in range(count, 2 * count):
        old = seq - count
        surface.commit(
            surface.check_raw(
                "user/message", seq, Replace(old, old), (old,), candidate=lambda: user(0), event_at=lambda _: user(0)
            )
        )
    assert surface.nodes == list(range(count, 2 * count))
    assert surface.replace_generation == count


# --- the forms of surfaceOp and sourceEventSeqs


@pytest.mark.parametrize(
    "value",
    [replace(0, 3), replace(0.0, 3.0), {"end": 3, "start": 0, "op": "replace"}, Replace(0, 3)],
)
def test_a_replacement_has_several_spellings(value: Any) -> None:
    """A mapping in any key order, integral floats, or the Struct."""
    parsed = parse_surface_op(value)
    assert parsed == Replace(0, 3)
    assert isinstance(parsed, Replace)
    assert type(parsed.start) is int


@pytest.mark.parametrize(
    ("value", "path"),
    [(value, "$.surfaceOp") for value in ODD_OPERATIONS]
    + [({"op": "replace", "start": 0}, "$.surfaceOp"), ({**replace(0, 0), "more": 1}, "$.surfaceOp")]
    + [({"op": op, "start": 0, "end": 0}, "$.surfaceOp.op") for op in ("append", "", None, 1, ["replace"])]
    + [
        (operation, f"$.surfaceOp.{key}")
        for bad in ODD_SEQS
        for key, operation in (("start", replace(bad, 0)), ("end", replace(0, bad)), ("end", Replace(0, bad)))
    ],
)
def test_an_odd_operation_is_refused_with_its_path(value: Any, path: str) -> None:
    """What is no operation says where it is none, and never enters the surface."""
    with pytest.raises(InvalidEventError) as caught:
        parse_surface_op(value)
    assert caught.value.path == path
    surface = Surface()
    surface.append_fast(0)
    if value is not None:
        with pytest.raises(InvalidEventError) as caught:
            surface.check_raw("user/message", 1, value, None, candidate=lambda: user(1), event_at=lambda _: user(0))
        assert (caught.value.path, caught.value.seq, caught.value.event_type) == (path, 1, "user/message")


def test_sources_are_a_list_or_a_tuple_and_keep_their_order() -> None:
    """Integral floats are the integers they spell."""
    assert parse_sources([3, 1, 2]) == parse_sources((3, 1, 2)) == parse_sources([3.0, 1, 2e0]) == (3, 1, 2)
    assert all(type(seq) is int for seq in parse_sources([3.0, 1]))
    assert parse_sources([]) == ()


@pytest.mark.parametrize("value", [None, "01", 3, True, {0: 1}, {0, 1}, range(2), iter([0, 1]), b"\0\1", {"length": 0}])
def test_other_iterables_are_no_sources(value: Any) -> None:
    """Only a list or a tuple holds an order that is written as it is."""
    with pytest.raises(InvalidEventError) as caught:
        parse_sources(value)
    assert caught.value.path == "$.sourceEventSeqs"


@pytest.mark.parametrize("bad", [-1, 0.5, -0.0, MAX_SAFE + 1, float("nan"), float("inf"), True, False, "1", None, [1]])
def test_an_odd_source_is_refused_with_its_path(bad: Any) -> None:
    """The element at fault is named, also where its neighbours make a run with it."""
    with pytest.raises(InvalidEventError) as caught:
        parse_sources([0, bad, 2])
    assert caught.value.path == "$.sourceEventSeqs[1]"


def test_duplicates_come_before_later_events() -> None:
    """The two rules are checked one after the other over the whole list."""
    check_sources([], 0)
    check_sources((4, 0, 2), 5)
    with pytest.raises(InvalidEventError, match="9 is not an earlier event") as caught:
        check_sources([1, 9], 9)
    assert caught.value.path == "$.sourceEventSeqs[1]"
    with pytest.raises(InvalidEventError, match="1 is cited twice") as caught:
        check_sources([9, 1, 0, 1], 9)
    assert caught.value.path == "$.sourceEventSeqs[3]"


@given(st.lists(st.integers(0, 12), max_size=8) | st.integers(0, 9).map(lambda n: list(range(n))), st.integers(0, 13))
def test_sources_are_judged_by_their_rules(sources: list[int], seq: int) -> None:
    """A list passes exactly when it has no duplicates and only earlier seqs."""
    good = len(set(sources)) == len(sources) and all(source < seq for source in sources)
    try:
        check_sources(sources, seq)
    except InvalidEventError:
        assert not good
    else:
        assert good


def test_any_earlier_event_may_be_cited_in_any_order() -> None:
    """Sources need not be surface nodes."""
    log = [event("turn/start", 0), user(1), event("x/y", 2), event("assistant/message", 3, "append", [2, 0, 1])]
    assert fold_surface(log).nodes == (1, 3)


def test_only_an_assistant_message_may_cite_nothing() -> None:
    """An empty list says that a stream was known and empty."""
    assert fold_surface([event("assistant/message", 0, "append", [])]).nodes == (0,)
    for type_ in ("user/message", "tool/result", "steering/message"):
        with pytest.raises(InvalidEventError, match="empty list"):
            fold_surface([event(type_, 0, "append", [])])


def test_an_empty_list_covers_nothing() -> None:
    """An assistant message that replaces must cite what it shadows."""
    for sources in EMPTY_OR_ABSENT:
        with pytest.raises(InvalidEventError, match="0 is missing"):
            fold_surface([user(0), event("assistant/message", 1, replace(0, 0), sources)])


# --- tool results


def test_a_tool_result_may_change_its_content() -> None:
    """A pruner shortens what a tool said, and nothing else; key order does not count."""
    pruned = result(1, replace(0, 0), [0], message__block__content=[{"type": "text", "text": "pruned"}])
    assert fold_surface([result(0), pruned]).nodes == (1,)
    turned = result(1, replace(0, 0), [0], meta={"c": "x", "a": [1, {"b": 2}]})
    assert fold_surface([result(0), turned]).nodes == (1,)
    without = result(1, replace(0, 0), [0], message__block__content=...)
    assert fold_surface([result(0), without]).nodes == (1,)


@pytest.mark.parametrize(
    "changes",
    [
        {"turn": 2},
        {"turn": 1.5},
        {"turn": True},
        {"step": 2},
        {"message__id": "n"},
        {"message__role": "assistant"},
        {"message__source": {"kind": "tool", "callId": "d"}},
        {"message__source__more": 1},
        {"message__block__type": "text"},
        {"message__block__toolCallId": "d"},
        {"message__block__isError": True},
        {"message__block__isError": ...},
        {"message__block__more": None},
        {"error": ...},
        {"error__code": "D"},
        {"meta": ...},
        {"meta__a": [1, {"b": 3}]},
        {"meta__a": [1, {"b": 2}, 0]},
        {"meta__a": {"0": 1, "1": {"b": 2}}},
        {"meta__a": [{"b": 2}, 1]},
        {"meta__a": [1, {"x": 2}]},
        {"meta__c": None},
        {"more": 1},
        {"message__content": []},
        {"message__content": [{"type": "tool-result"}, {"type": "tool-result"}]},
        {"message__content": {}},
        {"message__content": ["text"]},
        {"message": "text"},
        {"message": ...},
    ],
)
def test_a_tool_result_may_change_nothing_else(changes: dict[str, Any]) -> None:
    """Every other part of the payload must be the same JSON value."""
    surface = grow([result(0)])
    candidate = result(1, replace(0, 0), [0], **changes)
    with pytest.raises(InvalidEventError, match="only the content"):
        surface.check(candidate, [result(0)].__getitem__)
    assert (surface.nodes, surface.replace_generation) == ([0], 0)


def test_a_malformed_result_cannot_be_rewritten() -> None:
    """Two payloads of no known form are not the same result, however alike they are."""
    odd: list[dict[str, Any]] = [{"message": None}, {"message__content": []}]
    for changes in odd:
        with pytest.raises(InvalidEventError, match="only the content"):
            fold_surface([result(0, **changes), result(1, replace(0, 0), [0], **changes)])
    payloads: list[Any] = [None, [], 7, {}]
    for data in payloads:
        log = [event("tool/result", 0, "append", data=data), event("tool/result", 1, replace(0, 0), [0], data=data)]
        with pytest.raises(InvalidEventError, match="only the content"):
            fold_surface(log)


def flat(seq: int, op: Any = "append", sources: Any = NO_OP, **changes: Any) -> Event:
    """A tool result of the old form, without a message."""
    data: dict[str, Any] = {"turn": 1, "step": 1, "callId": "c", "content": [], "isError": False, "meta": 1} | changes
    return event("tool/result", seq, op, sources, data)


def test_old_results_are_rewritten_by_the_same_rule() -> None:
    """A result without a message may change its content, and be replaced by one that has a message."""
    assert fold_surface([flat(0), flat(1, replace(0, 0), [0], content=["x"])]).nodes == (1,)
    newer = result(1, replace(0, 0), [0], meta=1, error=..., message__block__isError=...)
    assert fold_surface([flat(0), newer]).nodes == (1,)
    older = [result(0, meta=1, error=...), flat(1, replace(0, 0), [0])]
    assert fold_surface(older).nodes == (1,)


@pytest.mark.parametrize(
    "changes", [{"isError": True}, {"callId": "d"}, {"turn": 2}, {"step": 2}, {"meta": 2}, {"error": {"code": "D"}}]
)
def test_old_results_may_change_nothing_else(changes: dict[str, Any]) -> None:
    """The rest must agree, between the forms as well."""
    with pytest.raises(InvalidEventError, match="only the content"):
        fold_surface([flat(0), flat(1, replace(0, 0), [0], **changes)])
    newer = result(1, replace(0, 0), [0], meta=1, error=...)
    with pytest.raises(InvalidEventError, match="only the content"):
        fold_surface([flat(0, **changes), newer])


# --- the raw form and the view


def test_the_raw_form_needs_no_event_for_an_append() -> None:
    """The hot paths of scanner and session build no event to ask the surface."""

    def never(*_: object) -> Event:
        raise AssertionError("an event was asked for")

    surface = Surface()
    for seq in range(3):
        change = surface.check_raw("user/message", seq, "append", None, candidate=never, event_at=never)
        assert change == Change(seq, seq, seq)
        surface.commit(change)
    change = surface.check_raw("user/message", 3, Replace(0, 1), [0, 1], candidate=never, event_at=never)
    surface.commit(change)
    assert surface.check_raw("x/y", 4, None, None, candidate=never, event_at=never) is None
    surface.commit(None)
    assert surface.nodes == [3, 2]


def test_the_view_is_stable_and_read_only() -> None:
    """One view follows the surface; its tuple is the same until something changes."""
    surface = Surface()
    view = SurfaceView(surface)
    nodes = view.nodes
    assert nodes == ()
    surface.append_fast(0)
    surface.append_fast(1)
    nodes = view.nodes
    assert nodes == (0, 1)
    assert view.nodes is nodes
    surface.commit(Change(2, 0, 1))
    assert view.nodes == (2, 1)
    assert view.replace_generation == 1
    assert nodes == (0, 1)
    for name in ("nodes", "replace_generation", "other"):
        with pytest.raises(AttributeError):
            setattr(view, name, ())
    assert repr(view) == "SurfaceView(2 nodes, generation 1)"


def test_messages_name_positions_and_never_contents() -> None:
    """What a tool said does not end up in an error."""
    candidate = result(1, replace(0, 0), [0], meta={"token": "s3cret"})
    assert "s3cret" not in message_of(lambda: fold_surface([result(0), candidate]))
