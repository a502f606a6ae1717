"""A session: an append-only log of typed events, and the views derived from it.

The log is the only truth.  Appending is synchronous, validates everything that a
load would validate, and never waits for I/O: a store that is attached takes what
it has to write from the log later (see ``_Sink``).
"""

from __future__ import annotations

import logging
from _thread import get_ident
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from inspect import iscoroutinefunction
from typing import TYPE_CHECKING, Final, Literal, NoReturn, Protocol, Self, overload

import msgspec
from msgspec import Struct, UnsetType

from sessionstore.chunks import read_delta
from sessionstore.clock import Clock, not_a_time, system_clock
from sessionstore.deltas import match_delta
from sessionstore.errors import InvalidEventError, UnsupportedFormatError, WrongThreadError
from sessionstore.eventlog import EventLog, Events
from sessionstore.events import DeltaKey, Event, SurfaceOp, render_line
from sessionstore.header import Header, check_header_id, make_header, parse_header
from sessionstore.history import History, fold_request_context, fold_request_header
from sessionstore.lossless import MAX_EVENT_BYTES, MAX_SAFE, Json, encode
from sessionstore.seeds import check_seed_event
from sessionstore.surface import Surface, SurfaceView, parse_sources, parse_surface_op
from sessionstore.vocabulary import EventTypes, RequestContext, encode_payload, validate_payload

if TYPE_CHECKING:
    from sessionstore.history import DerivedMessage
    from sessionstore.vocabulary import EpochHeader

__all__ = ["Checker", "Observer", "Session"]

Observer = Callable[[Event], object]
Checker = Callable[[Event], object]

_FOLDED: Final = frozenset({"request/header", "request/context"})
_INT_ONLY: Final = {int}
_TAKE_LINES: Final = 4096
_DELTA_COST: Final = 8  # bytes that a packed row spends on a delta besides its text, roughly

_compact: Final = msgspec.json.Encoder().encode
_logger = logging.getLogger("sessionstore")


class _Sink(Protocol):
    """What a store puts behind a session: it is told that something is to be written, never handed the events."""

    def admit(self, size: int, *, events: int = 1) -> int:
        """Called before an append of about *size* bytes commits, once ``_unwritten + size >= _wake_at``.

        Also by who asks for room for several *events* before the first of them is appended.
        Returns the number of unwritten bytes at which it wants to be called again.  Raising refuses the append.
        """
        ...


class Session:
    """An append-only log of events with the history, header and context that follow from it.

    ``Session(id)`` starts empty; *seed* replays events (of a log, or as plain dicts), which are validated and
    not published to observers.  *header* is the session's immutable metadata; without one it is made up.
    *clock* returns epoch ms.  *types* are the plugin event types to read as Structs.

    Raises:
        InvalidEventError: a seed event is refused (the message names its index), or id or header are bad.
        UnsupportedFormatError: a seed event is of a retired form.
        TypeError: *seed* is not iterable, *clock* no function, *types* no EventTypes.
    """

    def __init__(
        self,
        id: str,
        seed: Iterable[Event | Mapping[str, Json]] | None = None,
        header: Header | Mapping[str, Json] | None = None,
        *,
        clock: Clock = system_clock,
        types: EventTypes | None = None,
    ) -> None:
        if not callable(clock):
            raise TypeError(f"clock is a function that returns epoch ms, got {type(clock).__name__}")
        if types is not None and not isinstance(types, EventTypes):
            raise TypeError(f"types is an EventTypes, got {type(types).__name__}")
        self._start(_make_header(id, header, clock), EventLog(types), Surface(), clock)
        for index, item in enumerate(() if seed is None else seed):
            self._replay(index, item)
        self._finish_seed()

    def _start(self, header: Header, log: EventLog, surface: Surface, clock: Clock) -> None:
        self._header = header
        self._log = log
        self._surface = surface
        self._surface_view = SurfaceView(surface)
        self._clock = clock
        self._history = History(header.id, log.event)  # not a method of ours: a cycle would keep a dropped log
        self._checkers: list[Checker] = []
        self._observers: list[Observer] = []
        self._publishing = False
        self._snapshot: Events | None = None
        self._folds: dict[str, Event | None] = {}
        self._owner: int | None = None
        self._sink: _Sink | None = None
        self._unwritten = 0
        self._wake_at: float = float("inf")
        self._taken = 0  # index of the first line that no batch has taken

    def _finish_seed(self) -> None:
        self._log.seal()
        self._first_live_seq = len(self._log)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id!r}, {self.seq} events>"

    def __reduce__(self) -> NoReturn:
        # Two objects over one log would each believe that they alone append to it and know what is stored.
        raise TypeError(f"session {self.id!r} cannot be copied or pickled; its events can: Session(id, session.events)")

    # --- what it is -------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        """The session's id, from its header."""
        return self._header.id

    @property
    def header(self) -> Header:
        """Immutable metadata, kept outside the log."""
        return self._header

    @property
    def seq(self) -> int:
        """The seq that the next event gets: the length of the log."""
        return len(self._log)

    @property
    def first_live_seq(self) -> int:
        """The first seq appended in this process: the length of the seed.  Never stored."""
        return self._first_live_seq

    @property
    def events(self) -> Events:
        """An immutable snapshot of the log; one taken earlier does not grow.  O(1)."""
        snapshot = self._snapshot
        if snapshot is None or len(snapshot) != len(self._log):
            snapshot = self._snapshot = self._log.events()
        return snapshot

    @property
    def surface(self) -> SurfaceView:
        """The ordered seqs that make up the model-visible history.  A stable, read-only view."""
        return self._surface_view

    # --- what follows from it ---------------------------------------------------------------------------------

    def derive_messages(self) -> list[DerivedMessage]:
        """The model's message history: a fresh list of shared, immutable messages.

        Each surface node is projected once; a replacement rebuilds.
        """
        return self._history.messages(self._surface.nodes, self._surface.replace_generation)

    def derive_event_message(self, event: Event) -> DerivedMessage | None:
        """The message that one event stands for, ``None`` where it stands for none."""
        return self._history.project(event)

    def request_header(self) -> EpochHeader | None:
        """The request header in force, in canonical form; ``None`` before the first ``request/header``."""
        event = self._last("request/header")
        return None if event is None else fold_request_header([event])

    def request_context(self) -> RequestContext | None:
        """The last ``request/context``; ``None`` before the first."""
        event = self._last("request/context")
        return None if event is None else fold_request_context([event])

    def _last(self, type_: Literal["request/header", "request/context"]) -> Event | None:
        if type_ not in self._folds:
            self._folds[type_] = self._log.find_last(type_)
        return self._folds[type_]

    # --- appending --------------------------------------------------------------------------------------------

    @overload
    def append(
        self,
        type: str,
        data: object,
        *,
        surface_op: SurfaceOp | Mapping[str, Json] | None = None,
        source_event_seqs: Sequence[int] | None = None,
    ) -> Event: ...
    @overload
    def append(
        self,
        type: Struct,
        *,
        surface_op: SurfaceOp | Mapping[str, Json] | None = None,
        source_event_seqs: Sequence[int] | None = None,
    ) -> Event: ...
    def append(
        self,
        type: str | Struct,
        data: object = ...,
        *,
        surface_op: SurfaceOp | Mapping[str, Json] | None = None,
        source_event_seqs: Sequence[int] | None = None,
    ) -> Event:
        """Append one event and return it: ``append("turn/start", {"turn": 1})`` or ``append(TurnStart(turn=1))``.

        The payload is detached: changing it afterwards does not change the log.  Message-producing types
        (``user/message``, ``assistant/message``, ``tool/result``, ``steering/message``) need *surface_op*:
        ``"append"`` or a :class:`Replace`.  *source_event_seqs* (list, tuple or range) are the seqs that the message
        derives from.

        Never blocks on I/O.  Observers run before it returns; what they raise is logged and contained.

        Raises:
            InvalidEventError: not lossless JSON, not the type's shape, a surface rule broken, or called from
                inside an observer or checker of this session.  The log is unchanged, the seq is not used up.
            InvariantError: an invariant checker vetoed (or whatever a registered checker raises).
            PendingLimitError, StoreClosedError, WrongThreadError: the store's side of it.
        """
        if surface_op is None and source_event_seqs is None:
            delta = match_delta(data if type == "assistant/chunk" else type, self._log.open_key)
            if delta is not None:
                return self._append_delta(*delta)
        if isinstance(type, Struct):
            if data is not ...:
                raise TypeError("append(Struct) takes no second argument")
            type, raw, payload = encode_payload(type, self._log.types)
        else:
            if not isinstance(type, str):
                raise InvalidEventError(f"event type is {type.__class__.__name__}, expected str or a payload Struct")
            if data is ...:
                raise TypeError("append(type, data) needs the payload")
            if isinstance(data, Struct):
                name, raw, payload = encode_payload(data, self._log.types)
                if name != type:
                    raise InvalidEventError(f"{data.__class__.__name__} is the payload of {name}", event_type=type)
            else:
                raw = encode(data, what=type)
                payload = validate_payload(type, raw, self._log.types)
        return self._append(type, raw, payload, surface_op, source_event_seqs)

    def _append(
        self, type_: str, raw: bytes, payload: Struct | UnsetType, surface_op: object, source_event_seqs: object
    ) -> Event:
        self._enter()
        if type(source_event_seqs) is range:  # what a message cites are most often the deltas just streamed
            source_event_seqs = list(source_event_seqs)
        seq, time = len(self._log), self._now()

        def build() -> Event:
            line = render_line(
                type_, seq, time, raw, sources=_sources_json(source_event_seqs), surface_op=_surface_op_json(surface_op)
            )
            return Event(type_, seq, time, line, None, "", self._log.types, payload)

        try:
            change = self._surface.check_raw(
                type_, seq, surface_op, source_event_seqs, candidate=build, event_at=self._event_at
            )
        except UnsupportedFormatError:  # of a log this says which program reads it; here somebody wants to write it
            raise InvalidEventError(
                "on the surface this type is a retired form; it takes neither surface_op nor source_event_seqs",
                event_type=type_,
                seq=seq,
            ) from None
        event = build()
        line = event.to_json()
        if len(line) > MAX_EVENT_BYTES:
            raise InvalidEventError(f"{len(line)} bytes; one event holds at most {MAX_EVENT_BYTES}", event_type=type_)
        self._veto(event)
        self._admit(len(line) + 1)
        self._log.append_line(line)
        self._surface.commit(change)
        if type_ in _FOLDED:
            self._folds[type_] = event
        self._publish(event)
        return event

    def _append_delta(self, key: DeltaKey, string: str) -> Event:
        self._enter()
        time = self._now()
        event = Event("assistant/chunk", len(self._log), time, None, key, string)
        if self._checkers:
            self._veto(event)
        self._admit(len(string) + _DELTA_COST)
        self._log.append_delta(key, string, time)
        if self._observers:
            self._publish(event)
        return event

    def _enter(self) -> None:
        if self._owner is not None and get_ident() != self._owner:
            raise WrongThreadError(self.id)
        if self._publishing:
            raise InvalidEventError(
                "appended from inside an observer or checker of the same session; append after it has returned",
                session_id=self.id,
            )

    def _now(self) -> int:
        time = self._clock()
        if type(time) is int and -MAX_SAFE <= time <= MAX_SAFE:
            return time
        raise not_a_time(time)

    def _veto(self, candidate: Event) -> None:
        self._publishing = True
        try:
            for check in tuple(self._checkers):
                check(candidate)
        finally:
            self._publishing = False

    def _admit(self, size: int) -> None:
        """Count *size* bytes as unwritten, asking the store first where it wants to be asked."""
        unwritten = self._unwritten + size
        if unwritten >= self._wake_at and self._sink is not None:
            self._wake_at = self._sink.admit(size)
        self._unwritten = unwritten

    def _publish(self, event: Event) -> None:
        self._publishing = True
        try:
            for observe in tuple(self._observers):
                try:
                    observe(event)
                except Exception:
                    # The event is committed; an observer cannot take it back, nor keep others from seeing it.
                    _logger.warning("session %r: an observer failed at seq %d", self.id, event.seq, exc_info=True)
        finally:
            self._publishing = False

    def observe(self, observer: Observer) -> Callable[[], None]:
        """Call *observer* with every event after it is committed; returns a function that stops it.

        Whatever it raises (``Exception``) is logged and contained.  It must not append to this session.
        """
        return _register(self._observers, observer)

    def check(self, checker: Checker) -> Callable[[], None]:
        """Call *checker* with every candidate before it is committed; raising vetoes the append.

        Returns a function that removes it.  It must not append to this session.
        """
        return _register(self._checkers, checker)

    # --- replay -----------------------------------------------------------------------------------------------

    def _replay(self, index: int, item: Event | Mapping[str, Json]) -> None:
        try:
            event = item if isinstance(item, Event) else Event.from_dict(item, self._log.types)
            check_seed_event(event)
            if event.seq != index:
                raise InvalidEventError(f"expected seq {index}, found {event.seq}", path="$.seq")
            change = self._surface.check(event, self._event_at)
        except InvalidEventError as error:
            raise InvalidEventError(
                f"seed event {index} is refused: {error.reason}",
                event_type=error.event_type,
                path=error.path,
                seq=index,
                session_id=self.id,
            ) from error
        delta = read_delta(event)
        if delta is None:
            self._log.append_line(event.to_json())
        else:
            self._log.append_delta(*delta, event.time)
        self._surface.commit(change)

    @classmethod
    def _adopt(
        cls, header: Header, log: EventLog, surface: Surface, *, closers: Iterable[Event] = (), clock: Clock
    ) -> Self:
        """A session over a log that a scan has validated and a store has stored, *closers* included."""
        session = cls.__new__(cls)
        session._start(header, log, surface, clock)
        for event in closers:
            change = surface.check(event, log.event)
            log.append_line(event.to_json())
            surface.commit(change)
        session._finish_seed()
        session._taken = log.line_count
        return session

    def _event_at(self, seq: int) -> Event:
        return self._log.event(seq)

    # --- what a store takes to write --------------------------------------------------------------------------

    def _take(self, limit: int) -> tuple[int, list[bytes]] | None:
        """The first seq and the storage lines of what is to be written next, about *limit* bytes at the most.

        At least one line; ``None`` when nothing is left.  Ends the open run: a run never crosses two writes.
        """
        log = self._log
        log.seal()
        first = self._taken
        if first == log.line_count:
            return None
        lines = log.slice_lines(first, min(first + _TAKE_LINES, log.line_count))
        size = 0
        for count, line in enumerate(lines):
            size += len(line) + 1
            if size > limit and count:
                lines = lines[:count]
                break
        self._taken = first + len(lines)
        if self._taken == log.line_count:
            self._unwritten, self._wake_at = 0, 0
        return log.line_start(first), lines

    def _untake(self, seq: int) -> None:
        """Put everything from *seq* on back: the next take starts there.  *seq* is the first of an earlier take."""
        self._taken = self._log.line_index(seq)
        self._unwritten = sum(map(len, self._log.slice_lines(self._taken, self._log.line_count)))


def _surface_op_json(value: object) -> bytes | None:
    """The text of an operation that the surface has accepted."""
    if value is None:
        return None
    return b'"append"' if value == "append" else _compact(parse_surface_op(value))


def _sources_json(value: object) -> bytes | None:
    """The text of cited seqs that the surface has accepted."""
    if value is None:
        return None
    plain = type(value) in (list, tuple) and set(map(type, value)) <= _INT_ONLY  # type: ignore[call-overload]
    return _compact(value if plain else parse_sources(value))


def _make_header(id_: str, header: Header | Mapping[str, Json] | None, clock: Clock) -> Header:
    if header is None:
        return make_header(id_, created_at=clock())
    if not isinstance(header, Header):
        if not isinstance(header, Mapping):
            raise InvalidEventError(f"a header is a Header or a mapping, got {type(header).__name__}", path="$")
        header = parse_header(encode(dict(header), what="header"))
    check_header_id(header, id_)
    return header


def _register(callbacks: list[Callable[[Event], object]], callback: Callable[[Event], object]) -> Callable[[], None]:
    if not callable(callback):
        raise TypeError(f"expected a function of one event, got {type(callback).__name__}")
    if iscoroutinefunction(callback):
        raise TypeError("expected a plain function, got a coroutine function; nobody would await it")
    entry = partial(callback)  # an object of its own: one function may be registered twice and removed once

    def remove() -> None:
        if entry in callbacks:
            callbacks.remove(entry)

    callbacks.append(entry)
    return remove
