"""The surface: which events make up the history that a model sees, and in what order.

An event of an eligible type either joins the end of the surface or takes the
place of a run of its nodes.  :meth:`Surface.check` decides without changing
anything; :meth:`Surface.commit` carries out what was decided.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, TypeAlias

from msgspec import Struct

from sessionstore.errors import InvalidEventError, UnsupportedFormatError
from sessionstore.events import Replace, only_events
from sessionstore.lossless import MAX_SAFE, Json, decode, json_equal
from sessionstore.vocabulary import SURFACE_TYPES

if TYPE_CHECKING:
    from sessionstore.events import Event, SurfaceOp

__all__ = [
    "Change",
    "EventAt",
    "Replacement",
    "Surface",
    "SurfaceFold",
    "SurfaceView",
    "check_sources",
    "fold_surface",
    "parse_sources",
    "parse_surface_op",
]

EventAt: TypeAlias = Callable[[int], "Event"]
"""Gives the logged event of a seq."""

_RETIRED_SURFACE_TYPES: Final = frozenset({"context/message", "prompt/blocked"})
_INT_ONLY: Final = {int}


class Change(Struct, frozen=True):
    """An accepted candidate: ``seq`` takes the place of the nodes at positions ``first`` to ``stop`` (excluded)."""

    seq: int
    first: int
    stop: int


class Replacement(Struct, frozen=True):
    """One replacement of a folded log: ``seq`` took the place of ``shadowed_seqs``, from ``start`` to ``end``."""

    seq: int
    start: int
    end: int
    shadowed_seqs: tuple[int, ...]


class SurfaceFold(Struct, frozen=True):
    """What :func:`fold_surface` found: the seqs of the nodes in order, and every replacement in log order."""

    nodes: tuple[int, ...]
    replacements: tuple[Replacement, ...]


class Surface:
    """The surface of one log while it grows.

    ``nodes`` holds the seqs in the order of the history and ``replace_generation`` counts replacements; both are to
    be read only and change in :meth:`commit` and :meth:`append_fast` alone.
    """

    __slots__ = ("_label_of", "_labels", "nodes", "replace_generation")

    def __init__(self) -> None:
        self.nodes: list[int] = []
        self.replace_generation = 0
        # A label per node, ascending along the surface, so that a node is found by bisection.  An appended node is
        # labelled with its own seq; a replacement inherits the label of the first node that it shadows and is noted
        # in _label_of.  Until the first replacement labels and nodes are one list.
        self._labels = self.nodes
        self._label_of: dict[int, int] = {}

    def check(self, event: Event, event_at: EventAt) -> Change | None:
        """Decide what ``event`` would do to the surface; ``None`` for a log-only event.  Changes nothing.

        ``event_at`` is asked for the replaced event of a ``tool/result`` replacement.

        Raises:
            InvalidEventError: the event breaks a rule of the surface.
            UnsupportedFormatError: a surface marker on a type that was surface in old logs.
        """
        surface_op: object
        sources: object
        try:
            surface_op, sources = event.surface_op, event.source_event_seqs
        except InvalidEventError:
            # One of them is malformed.  check_raw says so in its turn, after the checks that come before it.
            stored = event.to_dict()
            surface_op = _null_is_a_value(stored, "surfaceOp")
            sources = _null_is_a_value(stored, "sourceEventSeqs")
        return self.check_raw(event.type, event.seq, surface_op, sources, candidate=lambda: event, event_at=event_at)

    def check_raw(
        self,
        type_: str,
        seq: int,
        surface_op: object,
        sources: object,
        *,
        candidate: Callable[[], Event],
        event_at: EventAt,
    ) -> Change | None:
        """:meth:`check` for a caller that has no :class:`Event` yet.

        ``surface_op`` and ``sources`` are the values of the envelope, parsed or as plain JSON; ``None`` means absent.
        ``candidate`` is called only for a replacement by a ``tool/result``, after all other checks passed.

        Raises:
            InvalidEventError: as :meth:`check`.
            UnsupportedFormatError: as :meth:`check`.
        """
        if type_ not in SURFACE_TYPES:
            if surface_op is None and sources is None:
                return None
            raise _not_surface(type_, seq)
        try:
            if surface_op is None:
                raise InvalidEventError("this type needs a surface operation", path="$.surfaceOp")
            op = parse_surface_op(surface_op)
            if isinstance(op, Replace):
                return self._check_replace(type_, seq, op, sources, candidate=candidate, event_at=event_at)
            if sources is not None:
                _check_citations(type_, seq, sources)
        except InvalidEventError as error:
            raise InvalidEventError(error.reason, event_type=type_, seq=seq, path=error.path) from None
        end = len(self.nodes)
        return Change(seq, end, end)

    def commit(self, change: Change | None) -> None:
        """Carry out what :meth:`check` accepted; ``None`` does nothing.  No other change may come between the two."""
        if change is None:
            return
        if change.first == change.stop:
            self.append_fast(change.seq)
            return
        if self._labels is self.nodes:
            self._labels = self.nodes.copy()
        label = self._labels[change.first]
        for shadowed in self.nodes[change.first : change.stop]:
            self._label_of.pop(shadowed, None)
        self._label_of[change.seq] = label
        self.nodes[change.first : change.stop] = [change.seq]
        self._labels[change.first : change.stop] = [label]
        self.replace_generation += 1

    def append_fast(self, seq: int) -> None:
        """Put ``seq`` at the end without any check: for a caller that has made them all."""
        self.nodes.append(seq)
        if self._labels is not self.nodes:
            self._labels.append(seq)

    def copy(self) -> Surface:
        """An independent surface in the same state."""
        twin = Surface()
        twin.nodes = self.nodes.copy()
        twin.replace_generation = self.replace_generation
        twin._labels = twin.nodes if self._labels is self.nodes else self._labels.copy()
        twin._label_of = self._label_of.copy()
        return twin

    def _position(self, seq: int) -> int | None:
        at = bisect_left(self._labels, self._label_of.get(seq, seq))
        return at if at < len(self.nodes) and self.nodes[at] == seq else None

    def _check_replace(
        self,
        type_: str,
        seq: int,
        op: Replace,
        sources: object,
        *,
        candidate: Callable[[], Event],
        event_at: EventAt,
    ) -> Change:
        first, last = self._position(op.start), self._position(op.end)
        if first is None:
            raise InvalidEventError(f"the replaced range starts at {op.start}, not a surface node", path=_START)
        if last is None:
            raise InvalidEventError(f"the replaced range ends at {op.end}, not a surface node", path=_END)
        if first > last:
            raise InvalidEventError(f"node {op.start} stands after node {op.end} on the surface", path=_START)
        cited = _check_citations(type_, seq, sources) if sources is not None else ()
        shadowed = self.nodes[first : last + 1]
        uncited = set(shadowed).difference(cited)
        if uncited:
            reason = f"a replacement cites every node it shadows; {min(uncited)} is missing"
            raise InvalidEventError(reason, path="$.sourceEventSeqs")
        if type_ == "tool/result":
            if len(shadowed) != 1:
                raise InvalidEventError(f"a tool result replaces one node, not {len(shadowed)}", path=_END)
            _check_rewrite(event_at(shadowed[0]), candidate())
        return Change(seq, first, last + 1)


class SurfaceView:
    """A read-only window on a :class:`Surface`; it follows the surface as that changes."""

    __slots__ = ("_nodes", "_seen", "_surface")

    def __init__(self, surface: Surface) -> None:
        self._surface = surface
        self._nodes: tuple[int, ...] = ()
        self._seen = (0, 0)

    @property
    def nodes(self) -> tuple[int, ...]:
        """The seqs of the nodes in the order of the history; the same tuple until the surface changes."""
        surface = self._surface
        # Within one generation nodes only grow, so the two numbers tell every state apart.
        now = (surface.replace_generation, len(surface.nodes))
        if now != self._seen:
            self._nodes, self._seen = tuple(surface.nodes), now
        return self._nodes

    @property
    def replace_generation(self) -> int:
        """How many replacements the surface has seen."""
        return self._surface.replace_generation

    def __repr__(self) -> str:
        return f"SurfaceView({len(self._surface.nodes)} nodes, generation {self._surface.replace_generation})"


def fold_surface(events: Iterable[Event]) -> SurfaceFold:
    """Fold a whole log, from seq 0 on, into its surface.

    Raises:
        InvalidEventError: as :meth:`Surface.check`, with the same message, at the first violation; or a seq does not
            continue.
        UnsupportedFormatError: as :meth:`Surface.check`.
    """
    surface = Surface()
    seen: dict[int, Event] = {}
    replacements: list[Replacement] = []
    for expected, event in enumerate(only_events(events)):
        if event.seq != expected:
            raise InvalidEventError(f"expected seq {expected}", event_type=event.type, seq=event.seq, path="$.seq")
        change = surface.check(event, seen.__getitem__)
        if change is None:
            continue
        seen[event.seq] = event
        shadowed = tuple(surface.nodes[change.first : change.stop])
        if shadowed:
            replacements.append(Replacement(event.seq, shadowed[0], shadowed[-1], shadowed))
        surface.commit(change)
    return SurfaceFold(tuple(surface.nodes), tuple(replacements))


def parse_surface_op(value: object) -> SurfaceOp:
    """The surface operation that ``value`` is: ``"append"``, a :class:`Replace`, or a mapping spelling one.

    Raises:
        InvalidEventError: it is none; ``path`` says what is wrong.
    """
    if isinstance(value, str) and value == "append":
        return "append"
    if isinstance(value, Replace):
        return Replace(_count(value.start, _START), _count(value.end, _END))
    if not isinstance(value, Mapping):
        raise InvalidEventError(f'expected "append" or a replacement, got {_kind(value)}', path="$.surfaceOp")
    if value.keys() != {"op", "start", "end"}:
        raise InvalidEventError("a replacement has exactly the keys op, start and end", path="$.surfaceOp")
    if value["op"] != "replace":
        raise InvalidEventError('expected "replace"', path="$.surfaceOp.op")
    return Replace(_count(value["start"], _START), _count(value["end"], _END))


def parse_sources(value: object) -> tuple[int, ...]:
    """The cited seqs that ``value`` (a list or tuple) holds, in their order.

    Raises:
        InvalidEventError: not a list, or an element is not a non-negative safe integer; ``path`` says which.
    """
    if not isinstance(value, (list, tuple)):
        raise InvalidEventError(f"expected a list of seqs, got {_kind(value)}", path=_SOURCES)
    # Lists of a million seqs are common (a message cites all its deltas), so the usual case is checked at C speed.
    if not value or (set(map(type, value)) == _INT_ONLY and min(value) >= 0 and max(value) <= MAX_SAFE):
        return tuple(value)
    return tuple(_count(seq, f"{_SOURCES}[{index}]") for index, seq in enumerate(value))


def check_sources(sources: Sequence[int], seq: int) -> None:
    """Check cited seqs, already known to be non-negative integers: no duplicates, each before ``seq``.

    Raises:
        InvalidEventError: a seq is not so; ``path`` says which.
    """
    if not sources:
        return
    if max(sources) < seq and len(set(sources)) == len(sources):
        return
    met: set[int] = set()
    for index, source in enumerate(sources):
        if source in met:
            raise InvalidEventError(f"{source} is cited twice", path=f"{_SOURCES}[{index}]")
        met.add(source)
    for index, source in enumerate(sources):
        if source >= seq:
            raise InvalidEventError(f"{source} is not an earlier event", path=f"{_SOURCES}[{index}]")


_START: Final = "$.surfaceOp.start"
_END: Final = "$.surfaceOp.end"
_SOURCES: Final = "$.sourceEventSeqs"
_NULL: Final = object()


def _check_citations(type_: str, seq: int, sources: object) -> tuple[int, ...]:
    cited = parse_sources(sources)
    if not cited and type_ != "assistant/message":
        raise InvalidEventError("an empty list is for assistant/message only; leave it out", path=_SOURCES)
    check_sources(cited, seq)
    return cited


def _not_surface(type_: str, seq: int) -> InvalidEventError | UnsupportedFormatError:
    if type_ in _RETIRED_SURFACE_TYPES:
        reason = f"{type_} (seq {seq}) with a surface marker is a retired form; the program that wrote it reads it"
        return UnsupportedFormatError(reason, direction="retired")
    return InvalidEventError("this type carries neither surfaceOp nor sourceEventSeqs", event_type=type_, seq=seq)


def _count(value: object, path: str) -> int:
    """A non-negative safe integer; an integral float (``1e3`` in a log) is the integer it spells."""
    if isinstance(value, float) and value.is_integer() and str(value) != "-0.0":
        value = int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        raise InvalidEventError(f"expected a seq, got {_kind(value)}", path=path)
    if not 0 <= value <= MAX_SAFE:
        raise InvalidEventError("a seq is from 0 to 2**53 - 1", path=path)
    return int(value)


def _kind(value: object) -> str:
    return "null" if value is None or value is _NULL else type(value).__name__


def _null_is_a_value(stored: Mapping[str, Json], key: str) -> object:
    """The stored value of a key, ``None`` if there is none, and a mark for a stored ``null``."""
    value = stored.get(key)
    return _NULL if value is None and key in stored else value


def _check_rewrite(old: Event, new: Event) -> None:
    """A tool result may replace a tool result, and change only what its block says."""
    if old.type != "tool/result":
        raise InvalidEventError(f"a tool result replaces a tool/result, not node {old.seq} ({old.type})", path=_START)
    was, now = decode(old.data_json), decode(new.data_json)
    of_one_form = _is_flat(was) == _is_flat(now)
    kept, found = (_rest(was), _rest(now)) if of_one_form else (_essentials(was), _essentials(now))
    if kept is None or found is None or not json_equal(kept, found):
        reason = f"a tool result that replaces another (node {old.seq}) may change only the content of its block"
        raise InvalidEventError(reason, path="$.data")


def _is_flat(data: Json) -> bool:
    """Whether a result is of the old form, which has no message."""
    return isinstance(data, Mapping) and "message" not in data


def _block(data: Mapping[str, Json]) -> Mapping[str, Json] | None:
    """The one block of a result's message; ``None`` if there is no such thing."""
    message = data.get("message")
    content = message.get("content") if isinstance(message, Mapping) else None
    block = content[0] if isinstance(content, list) and len(content) == 1 else None
    return block if isinstance(block, Mapping) else None


def _rest(data: Json) -> Json:
    """The payload of a result without its block's content; ``None`` for a payload of neither form."""
    if not isinstance(data, Mapping):
        return None
    if _is_flat(data):
        return _without(data, "content") if "content" in data else None
    message, block = data["message"], _block(data)
    if block is None or not isinstance(message, Mapping):
        return None
    return [_without(data, "message"), _without(message, "content"), _without(block, "content")]


def _essentials(data: Json) -> Json:
    """What both forms of a result have, for one replacing the other: the old one has no message id to compare."""
    if not isinstance(data, Mapping) or _rest(data) is None:
        return None
    shared = [data.get(key) for key in ("turn", "step", "error", "meta")]
    block = _block(data)
    if block is None:
        return [*shared, data.get("callId"), data.get("isError") is True]
    return [*shared, block.get("toolCallId"), block.get("isError") is True]


def _without(value: Mapping[str, Json], key: str) -> dict[str, Json]:
    return {name: item for name, item in value.items() if name != key}
