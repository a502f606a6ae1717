"""Bad values for the functions of events and bytes; events that are too much; the wrong thread, loop and time."""

from __future__ import annotations

import asyncio
import pickle
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import (
    DamagedLogError,
    Event,
    EventTypes,
    ForkError,
    InvalidEventError,
    InvariantTrace,
    LogScanner,
    Session,
    SessionExistsError,
    SessionNotFoundError,
    SessionStore,
    StorageError,
    StoredSession,
    TodoItem,
    TurnStart,
    WrongThreadError,
    decode_storage_record,
    derive_event_message,
    fold_request_context,
    fold_request_header,
    fold_surface,
    interrupted_turn_closers,
    pack_chunk_runs,
    scan_log,
)
from tests.conformance.build import goes_on

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.conformance.places import Place


# --- functions of events and bytes --------------------------------------------------------------------------------

EVENT: dict[str, Any] = {"type": "test/event", "seq": 0, "time": 0, "data": {}}
NO_EVENTS: list[Any] = [None, 0, "x", b"x", EVENT, TurnStart(turn=1), object()]
OF_EVENTS: dict[str, Callable[[Any], object]] = {
    "fold_surface": lambda it: fold_surface([it]),
    "fold_request_header": lambda it: fold_request_header([it]),
    "fold_request_context": lambda it: fold_request_context([it]),
    "interrupted_turn_closers": lambda it: interrupted_turn_closers([it]),
    "pack_chunk_runs": lambda it: pack_chunk_runs([it]),
    "derive_event_message": derive_event_message,
    "Session.derive_event_message": lambda it: Session("s").derive_event_message(it),
    "InvariantTrace.check": lambda it: InvariantTrace().check(it),
    "InvariantTrace.commit": lambda it: InvariantTrace().commit(it),
    "InvariantTrace.replay": lambda it: InvariantTrace().replay([it]),
}


@pytest.mark.parametrize("function", OF_EVENTS)
def test_a_function_of_events_says_that_it_was_given_none(function: str) -> None:
    """Most often it was given dicts; the message says how they become events."""
    for value in NO_EVENTS:
        with pytest.raises(TypeError, match=r"expected an Event, got .*Event\.from_dict"):
            OF_EVENTS[function](value)
    OF_EVENTS[function](Event.from_dict(EVENT))


OF_BYTES: dict[str, Callable[[Any], object]] = {
    "scan_log": scan_log,
    "LogScanner.feed": lambda it: LogScanner().feed(it),
    "decode_storage_record": decode_storage_record,
    "Event.from_json": Event.from_json,
}


@pytest.mark.parametrize("function", OF_BYTES)
def test_a_function_of_bytes_says_that_it_was_given_none(function: str) -> None:
    """A text, say, or a number, which is not taken for so many zero bytes."""
    texts = [] if function == "Event.from_json" else ["text", "\ud800"]
    values: list[Any] = [None, 0, 10**12, -1, 1.5, [], [1], {}, *texts]
    for value in values:
        with pytest.raises(TypeError, match="bytes"):
            OF_BYTES[function](value)


PARTS: list[tuple[Callable[[Any], object], list[Any], type[Exception], str]] = [
    (lambda it: Session("s", clock=it), [None, 0, "x", []], TypeError, "clock is a function"),
    (lambda it: Session("s", types=it), [0, "x", [], {}], TypeError, "types is an EventTypes"),
    (InvariantTrace, [None, 0, "x", [], {}], ValueError, "'execution' or 'strict'"),
    (lambda it: EventTypes().register(it, TodoItem), [None, 0, b"x", []], TypeError, "type is a str"),
    (lambda it: EventTypes().register(it, TodoItem), ["turn/start", ""], ValueError, "is taken"),
    (lambda it: EventTypes().register("my/x", it), [None, 0, "x", [], {}, dict], TypeError, "msgspec.Struct"),
    (lambda it: EventTypes().register("my/x", it), [TurnStart], ValueError, "another event type"),
    (lambda it: SessionStore("/nowhere", compression=it), [None, 0, "gzip", [], {}], ValueError, "compression is"),
]


def test_what_is_put_together_wrongly() -> None:
    """Wrong parts are told when they are put together, not when they are first needed."""
    for make, values, error, message in PARTS:
        for value in values:
            with pytest.raises(error, match=message):
                make(value)


# --- too much -----------------------------------------------------------------------------------------------------


def nested(levels: int) -> list[Any]:
    """A list in a list in a list."""
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


async def test_events_without_end(place: Place) -> None:
    """Too deep, without an end, or with a number that nobody can read: refused at once, and no seq is used."""
    endless: list[Any] = []
    endless.append(endless)
    async with place.store() as store:
        session = await store.create("s")
        for data, message in [
            (nested(20_000), "nested deeper"),
            (endless, "contains itself"),
            (10**5000, "4300 digits"),
        ]:
            with pytest.raises(InvalidEventError, match=message) as caught:
                session.append("test/event", {"x": data})
            assert len(str(caught.value)) < 1000
        session.append("test/event", nested(5_000))
        await goes_on(session)


def test_an_event_that_is_too_large(monkeypatch: pytest.MonkeyPatch) -> None:
    """More than 256 MiB (here: 1 KiB) is refused with both numbers."""
    monkeypatch.setattr("sessionstore.session.MAX_EVENT_BYTES", 1024)
    session = Session("s")
    session.append("turn/start", {"turn": 1})
    with pytest.raises(InvalidEventError, match=r"test/event: 1\d\d\d bytes; one event holds at most 1024"):
        session.append("test/event", {"x": "x" * 1024})
    assert session.seq == 1


async def test_messages_of_errors_can_be_printed_and_are_short() -> None:
    """Whatever the id: a message never fails to print, and does not fill the screen."""
    for error in [
        SessionNotFoundError("\ud800" * 9),
        SessionExistsError("x" * 100_000, where="/tmp/\udcff"),
        DamagedLogError("\ud800", path="/tmp/\udcff", verdict="damaged", findings=()),
        StorageError("write to", path="/tmp/\udcff", session_id="漢" * 5000),
        WrongThreadError("\ud800" * 5000),
        ForkError("OPEN_TURN", "turn 1 is open", session_id="y" * 100_000),
        InvalidEventError("no", event_type="\ud800", path="$.\ud800", session_id="z" * 100_000),
    ]:
        assert len(str(error).encode()) < 2000
        again = pickle.loads(pickle.dumps(error))
        assert str(again) == str(error)
        assert vars(again) == vars(error)


# --- threads and loops ---------------------------------------------------------------------------------------------


def test_another_thread_is_told_and_another_loop_too(tmp_path: Path) -> None:
    """Neither changes anything; the owner goes on."""

    async def from_outside(store: SessionStore, session: StoredSession, error: type[Exception]) -> None:
        for call in (session.flush, session.dispose, lambda: session.turn().__aenter__()):
            with pytest.raises(error):
                await call()
        for method in (store.create, store.list, store.trash, store.aclose):
            with pytest.raises(RuntimeError, match="another event loop"):
                await method()

    def in_a_thread(store: SessionStore, session: StoredSession) -> None:
        with pytest.raises(WrongThreadError, match="call_soon_threadsafe"):
            session.append("test/event", {})
        with pytest.raises(WrongThreadError, match="call_soon_threadsafe"):
            session.inject("x")
        asyncio.run(from_outside(store, session, WrongThreadError))

    with asyncio.Runner() as runner:
        store = SessionStore(tmp_path)
        session = runner.run(store.create("s"))
        runner.run(goes_on(session))
        with ThreadPoolExecutor(1) as pool:
            pool.submit(in_a_thread, store, session).result()
        runner.run(goes_on(session))
        runner.run(store.aclose())
