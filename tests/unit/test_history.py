"""Derived history, request header and context: each against the plain rule, and the cache against scratch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.events import Event
from sessionstore.history import (
    DerivedMessage,
    History,
    canonical_header,
    derive_event_message,
    fold_request_context,
    fold_request_header,
    headers_equal,
)
from sessionstore.messages import AssistantMessage, ToolResultMessage, UserMessage
from sessionstore.vocabulary import (
    PAYLOADS,
    SURFACE_TYPES,
    AdapterDefaults,
    EpochHeader,
    LlmCallConfig,
    RequestContext,
    RequestHeader,
    ToolSchema,
    encode_payload,
)
from tests.payload_cases import ASSISTANT, EXAMPLES, USER

EMPTY_ANSWER = {"turn": 1, "step": 1, "message": {**ASSISTANT, "content": []}}


def event(name: str, data: object, seq: int = 0, **fields: Any) -> Event:
    """An event of a log."""
    return Event.from_dict({"type": name, "seq": seq, "time": 0, "data": data, **fields})  # type: ignore[dict-item]


# One event


@pytest.mark.parametrize(
    ("name", "struct", "message_id"),
    [
        ("user/message", UserMessage, "m1"),
        ("steering/message", UserMessage, "m1"),
        ("assistant/message", AssistantMessage, "m2"),
        ("tool/result", ToolResultMessage, "m3"),
    ],
)
def test_the_message_of_an_event_is_the_one_it_holds(name: str, struct: type[Any], message_id: str) -> None:
    """No re-framing and no new ids: the very object of the typed view."""
    held = event(name, EXAMPLES[name])
    message: Any = derive_event_message(held)
    data: Any = held.data
    assert type(message) is struct
    assert message.id == message_id
    assert message is (data if name == "user/message" else data.message)


@pytest.mark.parametrize("name", [*sorted(PAYLOADS.keys() - SURFACE_TYPES), "compact/start", "context/message"])
def test_other_events_stand_for_no_message(name: str) -> None:
    """Boundaries, chunks, calls, plugin events."""
    assert derive_event_message(event(name, EXAMPLES.get(name, USER))) is None


def test_an_assistant_message_without_content_stands_for_no_message() -> None:
    """It exists to carry usage; an empty user message is one all the same."""
    assert derive_event_message(event("assistant/message", EMPTY_ANSWER)) is None
    odd = {**EMPTY_ANSWER, "usage": None}
    assert derive_event_message(event("assistant/message", odd)) is None
    assert derive_event_message(event("user/message", {**USER, "content": []})) is not None


def test_a_sound_message_in_an_odd_payload_is_typed_all_the_same() -> None:
    """The payload is read-only JSON because of its usage; the message in it fits."""
    held = event("assistant/message", {"turn": 1, "step": 1, "message": ASSISTANT, "usage": None})
    assert derive_event_message(held) == derive_event_message(event("assistant/message", EXAMPLES["assistant/message"]))


def test_a_message_that_fits_no_struct_is_read_only_json() -> None:
    """It is in the history as the log has it."""
    message: Any = derive_event_message(event("user/message", {**USER, "content": [{"no": "type"}]}))
    assert message["content"] == ({"no": "type"},)
    with pytest.raises(TypeError):
        message["id"] = "x"


@pytest.mark.parametrize("data", [None, [], {}, {"message": None}, {"message": []}])
def test_a_payload_without_a_message_stands_for_none(data: object) -> None:
    """Such an event is refused when a log is opened; looking at it must not fail."""
    for name in SURFACE_TYPES - {"user/message"}:
        assert derive_event_message(event(name, data)) is None


# The cache


class Log:
    """A log and its surface by the plainest rules: append at the end, or replace a slice."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.nodes: list[int] = []
        self.generation = 0

    def add(self, name: str, data: object, span: tuple[int, int] | None = None) -> None:
        """Append *data*, or put it in place of the nodes at the positions of *span*."""
        seq = len(self.events)
        if span is None:
            self.nodes.append(seq)
            op: object = "append"
        else:
            first, last = span
            op = {"op": "replace", "start": self.nodes[first], "end": self.nodes[last]}
            self.nodes[first : last + 1] = [seq]
            self.generation += 1
        self.events.append(event(name, data, seq, surfaceOp=op))

    def scratch(self) -> list[DerivedMessage]:
        """The history, derived anew."""
        found = [derive_event_message(self.events[seq], "S", self.events.__getitem__) for seq in self.nodes]
        return [message for message in found if message is not None]


MESSAGES = st.sampled_from(
    [
        ("user/message", USER),
        ("user/message", {"content": [], "source": {"kind": "user"}}),
        ("user/message", {**USER, "content": ["odd"]}),
        ("assistant/message", EXAMPLES["assistant/message"]),
        ("assistant/message", EMPTY_ANSWER),
        ("tool/result", EXAMPLES["tool/result"]),
        ("tool/result", {"turn": 1, "step": 1, "callId": "c", "content": [], "isError": True}),
        ("steering/message", EXAMPLES["steering/message"]),
    ]
)


@pytest.mark.slow
@given(st.lists(st.tuples(MESSAGES, st.booleans(), st.integers(0, 99), st.integers(0, 3), st.booleans()), max_size=25))
def test_the_cache_equals_a_scratch_replay_at_every_point(
    steps: list[tuple[tuple[str, Any], bool, int, int, bool]],
) -> None:
    """Appends and replacements at random, read after some of them: never stale, never twice."""
    log = Log()
    history = History("S", log.events.__getitem__)
    for (name, data), replace, at, width, read in steps:
        span = None
        if replace and log.nodes:
            first = at % len(log.nodes)
            span = (first, min(first + width, len(log.nodes) - 1))
        log.add(name, data, span)
        if read:
            assert history.messages(log.nodes, log.generation) == log.scratch()
    assert history.messages(log.nodes, log.generation) == log.scratch()


def test_each_node_is_projected_once_and_messages_are_shared() -> None:
    """A growing history costs the new nodes only; a replacement keeps the objects that stay."""
    log, seen = Log(), []

    def event_at(seq: int) -> Event:
        seen.append(seq)
        return log.events[seq]

    history = History("S", event_at)
    first: list[DerivedMessage] = []
    for _ in range(5):
        log.add("user/message", USER)
        first = history.messages(log.nodes, log.generation)
    log.add("user/message", USER, (1, 3))
    second = history.messages(log.nodes, log.generation)
    assert seen == [0, 1, 2, 3, 4, 5]
    assert second is not history.messages(log.nodes, log.generation)
    assert (second[0] is first[0], second[-1] is first[-1], len(second)) == (True, True, 3)


def test_a_callers_list_is_its_own() -> None:
    """Emptying the returned list does not empty the history."""
    log = Log()
    log.add("user/message", USER)
    history = History("S", log.events.__getitem__)
    history.messages(log.nodes, log.generation).clear()
    assert history.messages(log.nodes, log.generation) == log.scratch()


def test_the_projection_of_a_node_is_the_historys_own_object() -> None:
    """What is in the history and what its event stands for are one object; a stranger's event is not confused."""
    log = Log()
    log.add("user/message", USER)
    history = History("S", log.events.__getitem__)
    (message,) = history.messages(log.nodes, log.generation)
    assert history.project(Event.from_json(log.events[0].to_json())) is message
    stranger = history.project(event("user/message", {**USER, "id": "other"}, surfaceOp="append"))
    assert stranger != message


# Request header and context


def header_event(header: dict[str, Any], reason: str = "initial", seq: int = 0) -> Event:
    """A request/header event."""
    return event("request/header", {"header": header, "reason": reason}, seq)


CONFIG = {"provider": "p", "model": "m"}
TOOL = {"name": "bash", "description": "d", "parameters": {"type": "object"}, "extra": 1}


def folded(header: dict[str, Any]) -> EpochHeader:
    """The canonical form of a header as logged."""
    found = fold_request_header([header_event(header)])
    assert found is not None
    return found


def test_the_latest_header_wins_and_other_events_do_not_matter() -> None:
    """Without a snapshot the start stays, whatever else happens."""
    events = [header_event(header_of("a")), event("user/message", USER, 1), header_event(header_of("b"), "change", 2)]
    found = fold_request_header(events)
    assert found == EpochHeader(config=LlmCallConfig(provider="p", model="b"))
    assert fold_request_header([event("user/message", USER)], found) is found
    assert fold_request_header([]) is None


def header_of(model: str) -> dict[str, Any]:
    """A header that differs by its model."""
    return {"config": {"provider": "p", "model": model}}


@pytest.mark.parametrize("system", [..., "", None, 5, [], ["x"]])
@pytest.mark.parametrize("tools", [..., [], "", None, 5, {}])
@pytest.mark.parametrize("defaults", [..., {}])
def test_the_canonical_form_leaves_out_what_says_nothing(system: Any, tools: Any, defaults: Any) -> None:
    """A system prompt that is no text, an empty tool list, markers of which none is set: all the same header."""
    fields = {"system": system, "tools": tools, "adapterDefaults": defaults}
    header = {"config": CONFIG, **{name: value for name, value in fields.items() if value is not ...}}
    assert folded(header) == EpochHeader(config=LlmCallConfig(provider="p", model="m"))


def test_the_canonical_form_keeps_the_rest_as_logged() -> None:
    """Tools keep fields that no Struct names; the message prefix goes."""
    found = folded(
        {
            "config": {**CONFIG, "maxTokens": 9},
            "adapterDefaults": {"maxTokens": True},
            "system": "s",
            "tools": [TOOL],
            "messagePrefix": [],
        }
    )
    assert found.adapter_defaults == AdapterDefaults(max_tokens=True)
    assert found.system == "s"
    assert found.tools == (ToolSchema(name="bash", description="d", parameters={"type": "object"}),)
    assert b'"extra":1' in encode_header(found)
    assert canonical_header(found) is found
    assert folded({"config": CONFIG, "tools": "{{tools}}"}).tools == "{{tools}}"  # type: ignore[comparison-overlap]


def encode_header(header: EpochHeader) -> bytes:
    """The JSON of a header as append would write it."""
    return encode_payload(RequestHeader(header=header, reason="change"))[1]


@given(st.permutations(["system", "tools", "adapterDefaults"]))
def test_a_folded_header_written_again_folds_to_itself(order: list[str]) -> None:
    """Whatever the key order on disk."""
    parts: dict[str, Any] = {"system": "s", "tools": [TOOL], "adapterDefaults": {"maxTokens": True}}
    first = folded({"config": {**CONFIG, "maxTokens": 9}, **{name: parts[name] for name in order}})
    again = fold_request_header(
        [Event.from_json(b'{"type":"request/header","seq":0,"time":0,"data":%b}' % encode_header(first))]
    )
    assert again == first


SAME = {"config": {**CONFIG, "temperature": 1, "stop": ["a"]}, "system": "s", "tools": [TOOL, {**TOOL, "name": "b"}]}
DIFFERENT: list[dict[str, Any]] = [
    {**SAME, "config": {**CONFIG, "provider": "q", "temperature": 1, "stop": ["a"]}},
    {**SAME, "config": {**CONFIG, "model": "n", "temperature": 1, "stop": ["a"]}},
    {**SAME, "config": {**CONFIG, "reasoningEffort": "high", "temperature": 1, "stop": ["a"]}},
    {**SAME, "config": {**CONFIG, "temperature": 0.5, "stop": ["a"]}},
    {**SAME, "config": {**CONFIG, "temperature": True, "stop": ["a"]}},
    {**SAME, "config": {**CONFIG, "stop": ["a"]}},
    {**SAME, "config": {**CONFIG, "temperature": 1, "stop": ["b"]}},
    {**SAME, "config": {**CONFIG, "temperature": 1}},
    {**SAME, "config": {**CONFIG, "temperature": 1, "stop": ["a"], "maxTokens": 1}},
    {
        **SAME,
        "config": {**CONFIG, "temperature": 1, "stop": ["a"], "maxTokens": 1},
        "adapterDefaults": {"maxTokens": True},
    },
    {**SAME, "system": "t"},
    {**SAME, "tools": [{**TOOL, "name": "b"}, TOOL]},
    {**SAME, "tools": [TOOL]},
    {**SAME, "tools": [TOOL, {**TOOL, "name": "b", "extra": 2}]},
    {"config": SAME["config"]},
]


def test_headers_are_equal_field_by_field() -> None:
    """Equal to itself and to another spelling of its numbers; every single difference counts, both ways."""
    same = folded(SAME)
    assert headers_equal(same, folded({**SAME, "messagePrefix": [1]}))
    assert headers_equal(same, folded({**SAME, "config": {**CONFIG, "temperature": 1.0, "stop": ["a"]}}))
    for header in DIFFERENT:
        assert not headers_equal(same, folded(header)), header
        assert not headers_equal(folded(header), same), header


def test_marked_and_unmarked_settings_differ() -> None:
    """A value that the adapter filled in is not one that the user chose."""
    config = {**CONFIG, "maxTokens": 1}
    assert not headers_equal(
        folded({"config": config}), folded({"config": config, "adapterDefaults": {"maxTokens": True}})
    )
    assert headers_equal(folded({"config": config}), folded({"config": config, "adapterDefaults": {}}))


def test_an_absent_stop_list_differs_from_an_empty_one_but_absent_tools_do_not() -> None:
    """No tools and an empty list of them ask for the same request; stop lists are passed on as they are."""
    assert not headers_equal(folded({"config": CONFIG}), folded({"config": {**CONFIG, "stop": []}}))
    bare = EpochHeader(config=LlmCallConfig(provider="p", model="m"))
    assert headers_equal(bare, EpochHeader(config=LlmCallConfig(provider="p", model="m"), tools=(), system=""))


def test_a_header_that_append_would_refuse_is_folded_as_far_as_it_goes() -> None:
    """A seed carries it; what is usable of it is in force."""
    config = {**CONFIG, "reasoningEffort": "", "stop": ["a"]}
    found = folded({"config": config, "system": "s", "adapterDefaults": {"maxTokens": 5, "reasoningEffort": True}})
    assert found.config == LlmCallConfig(provider="p", model="m", stop=("a",))
    assert found.system == "s"
    assert found.adapter_defaults == AdapterDefaults(reasoning_effort=True)
    assert folded({"config": CONFIG, "adapterDefaults": 7}).adapter_defaults is None


def test_a_header_without_provider_and_model_leaves_none() -> None:
    """No request can be built from it."""
    assert fold_request_header([header_event({"config": CONFIG}), header_event({"config": {"model": "m"}})]) is None
    assert fold_request_header([event("request/header", None)]) is None


def test_the_latest_request_context_wins() -> None:
    """None before the first, the start where nothing follows; capacity may be unknown."""
    events = [event("request/context", {**CONFIG, "contextWindow": n}, n) for n in (1, 2)]
    assert fold_request_context([]) is None
    found = fold_request_context(events)
    assert found == RequestContext(provider="p", model="m", context_window=2)
    assert fold_request_context([event("user/message", USER)], found) is found
    assert fold_request_context([event("request/context", CONFIG)], found) == RequestContext(provider="p", model="m")
    assert fold_request_context([event("request/context", {"provider": 1})], found) is None


@pytest.mark.slow
@given(st.lists(st.sampled_from(["header", "context", "user"]), max_size=12), st.integers(0, 12))
def test_folding_in_two_parts_is_folding_at_once(kinds: list[str], cut: int) -> None:
    """A fold can be continued from where an earlier one ended."""
    events = [made_of(kind, seq) for seq, kind in enumerate(kinds)]
    head, tail = events[:cut], events[cut:]
    assert fold_request_header(tail, fold_request_header(head)) == fold_request_header(events)
    assert fold_request_context(tail, fold_request_context(head)) == fold_request_context(events)


def made_of(kind: str, seq: int) -> Event:
    """An event that can be told from its predecessors."""
    if kind == "header":
        return header_event(header_of(str(seq)), seq=seq)
    if kind == "context":
        return event("request/context", {"provider": "p", "model": str(seq)}, seq)
    return event("user/message", USER, seq)
