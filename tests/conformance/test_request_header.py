"""Conformance, theme I: the request header and the request context in force."""

from __future__ import annotations

from typing import Any

import pytest

from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.history import canonical_header, fold_request_header, headers_equal
from sessionstore.session import Session
from sessionstore.vocabulary import EpochHeader, RequestHeader
from tests.conformance.build import dicts, say, turn_start

TOOL = {"name": "shell", "description": "runs", "parameters": {"type": "object"}}
OTHER = {"name": "read", "description": "reads", "parameters": {"type": "object"}}


def payload(reason: str = "initial", config: dict[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """The payload of a request/header."""
    return {"header": {"config": {"provider": "p", "model": "m", **(config or {})}, **fields}, "reason": reason}


def header(**fields: Any) -> EpochHeader:
    """The header in force after one such event."""
    session = Session("s")
    session.append("request/header", payload(**fields))
    found = session.request_header()
    assert found is not None
    return found


def test_the_canonical_form_drops_what_is_empty() -> None:
    """An empty system prompt and an empty tool list are absent; everything else is kept."""
    bare = header(system="", tools=[])
    assert bare.system is None
    assert not bare.tools
    full = header(system="be kind", tools=[TOOL], config={"temperature": 0.5, "maxTokens": 5, "stop": ["x"]})
    assert full.system == "be kind"
    assert full.tools is not None
    assert [tool.name for tool in full.tools] == ["shell"]
    assert (full.config.temperature, full.config.max_tokens, full.config.stop) == (0.5, 5, ("x",))
    assert canonical_header(full) == full


DIFFERENT: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "provider": ({"config": {"provider": "a"}}, {"config": {"provider": "b"}}),
    "model": ({"config": {"model": "a"}}, {"config": {"model": "b"}}),
    "temperature": ({"config": {"temperature": 1}}, {}),
    "maxTokens": ({"config": {"maxTokens": 1}}, {"config": {"maxTokens": 2}}),
    "reasoningEffort": ({"config": {"reasoningEffort": "a"}}, {}),
    "absent and empty stop": ({"config": {"stop": []}}, {}),
    "stop": ({"config": {"stop": ["a"]}}, {"config": {"stop": ["b"]}}),
    "system": ({"system": "a"}, {"system": "b"}),
    "tools": ({"tools": [TOOL]}, {"tools": [OTHER]}),
    "tool order": ({"tools": [TOOL, OTHER]}, {"tools": [OTHER, TOOL]}),
    "tool parameters": ({"tools": [TOOL]}, {"tools": [{**TOOL, "parameters": {"type": "string"}}]}),
}


@pytest.mark.parametrize(("one", "two"), DIFFERENT.values(), ids=DIFFERENT.keys())
def test_headers_differ_in_any_field(one: dict[str, Any], two: dict[str, Any]) -> None:
    """Every field counts, and the order of tools does."""
    assert headers_equal(header(**one), header(**one))
    assert not headers_equal(header(**one), header(**two))


def test_absent_and_empty_tools_are_equal() -> None:
    """A request without tools is a request without tools."""
    assert headers_equal(header(), header(tools=[], system=""))


def test_the_fold_returns_its_start_without_snapshots_and_the_last_one_with() -> None:
    """Unrelated events do not matter; each snapshot replaces all of the one before."""
    session = Session("s")
    say(session)
    start = header(system="start")
    assert fold_request_header(session.events, start) == start
    assert fold_request_header(session.events) is None
    assert session.request_header() is None
    session.append("request/header", payload(system="one", tools=[TOOL]))
    session.append("turn/start", turn_start())
    session.append("request/header", payload("change", system="two"))
    session.append("turn/end", {"turn": 1, "reason": {"kind": "completed"}})
    folded = fold_request_header(session.events, start)
    assert folded is not None
    assert (folded.system, folded.tools) == ("two", None)
    assert session.request_header() == folded


def test_both_forms_of_append_give_the_same_header() -> None:
    """A Struct and a dict are the same event."""
    one, two = Session("s", clock=lambda: 1), Session("s", clock=lambda: 1)
    event = one.append("request/header", payload(system="x", tools=[TOOL]))
    assert isinstance(event.data, RequestHeader)
    two.append(event.data)
    assert one.request_header() == two.request_header()
    assert one.events == two.events


@pytest.mark.parametrize(
    ("type_", "data"),
    [("request/header-delta", {"delta": {}}), ("request/header", payload("fallback"))],
    ids=["header-delta", "fallback"],
)
def test_retired_header_forms_are_refused(type_: str, data: dict[str, Any]) -> None:
    """Deltas and fallback snapshots are of the past, at append and in seeds."""
    session = Session("s")
    with pytest.raises((InvalidEventError, UnsupportedFormatError)):
        session.append(type_, data)
    assert session.seq == 0
    with pytest.raises(UnsupportedFormatError):
        Session("s", [{"type": type_, "seq": 0, "time": 1, "data": data}])


def context(model: str, window: int | None = 1000) -> dict[str, Any]:
    """The payload of a request/context."""
    return {"provider": "p", "model": model, **({} if window is None else {"contextWindow": window})}


def test_there_is_no_context_at_first() -> None:
    """Nothing was asked, nothing is known."""
    assert Session("s").request_context() is None


def test_a_seeded_context_is_the_last_one() -> None:
    """Replaying a log finds the context in force."""
    session = Session("s")
    session.append("request/context", context("a"))
    session.append("request/context", context("b"))
    found = Session("s", dicts(session)).request_context()
    assert found is not None
    assert found.model == "b"


def test_the_context_follows_every_append() -> None:
    """Whether it is read after each event or once after many, it is the last one."""
    session = Session("s")
    for model in ("a", "b"):
        session.append("request/context", context(model))
        found = session.request_context()
        assert found is not None
        assert found.model == model
    for model in ("c", "d", "e"):
        session.append("request/context", context(model))
    say(session)
    found = session.request_context()
    assert found is not None
    assert (found.model, found.context_window) == ("e", 1000)


def test_the_context_is_immutable_and_its_window_optional() -> None:
    """A reader cannot change what others see; newer writers may not know the window."""
    session = Session("s")
    session.append("request/context", context("a", None))
    found = session.request_context()
    assert found is not None
    assert found.context_window is None
    with pytest.raises(AttributeError):
        found.model = "x"  # type: ignore[misc]
