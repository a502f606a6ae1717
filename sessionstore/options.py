"""The options of a store, checked once, where they are given."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from inspect import iscoroutinefunction
from typing import Any, get_args

from msgspec import Struct

from sessionstore.clock import Clock, checked, system_clock
from sessionstore.events import Event
from sessionstore.ids import TimeOrderedIds
from sessionstore.invariants import InvariantMode
from sessionstore.vocabulary import EventTypes
from sessionstore.writebehind import Durability, Policy

__all__ = ["Options", "check_options"]

_DAY_MS = 86_400_000


class Options(Struct, frozen=True, kw_only=True):
    """What every session of a store has in common."""

    policy: Policy
    clock: Clock
    new_id: Callable[[], str]
    invariants: InvariantMode | None
    checkers: tuple[Callable[[Event], object], ...]
    on_error: Callable[..., object] | None
    types: EventTypes


def check_options(
    *,
    durability: object,
    batch_window_ms: object,
    batch_bytes: object,
    max_pending_bytes: object,
    pack_chunks: object,
    clock: object,
    new_id: object,
    invariants: object,
    checkers: object,
    on_error: object,
    types: object,
) -> Options:
    """The options as given to :class:`SessionStore`.

    Raises:
        TypeError: a value is of a wrong type.
        ValueError: a value is out of range; the message says what is allowed.
    """
    window = _number("batch_window_ms", batch_window_ms, 0, _DAY_MS)
    the_clock: Any = system_clock if clock is None else checked(_function("clock", clock))
    policy = Policy(
        window=window / 1000,
        batch_bytes=_whole("batch_bytes", batch_bytes),
        max_pending_bytes=_whole("max_pending_bytes", max_pending_bytes),
        durability=_choice("durability", durability, get_args(Durability)),
        pack_chunks=_choice("pack_chunks", pack_chunks, (True, False)),
    )
    if not isinstance(checkers, Iterable):
        raise TypeError(f"checkers is an iterable of functions of an event, got {type(checkers).__name__}")
    if types is not None and not isinstance(types, EventTypes):
        raise TypeError(f"types is an EventTypes, got {type(types).__name__}")
    return Options(
        policy=policy,
        clock=the_clock,
        new_id=TimeOrderedIds(the_clock) if new_id is None else _function("new_id", new_id),
        invariants=None if invariants is None else _choice("invariants", invariants, ("execution", "strict")),
        checkers=tuple(_function("checkers", checker) for checker in checkers),
        on_error=None if on_error is None else _function("on_error", on_error),
        types=EventTypes() if types is None else types,
    )


def _number(name: str, value: object, low: float, high: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise TypeError(f"{name} is a number, got {type(value).__name__}")
    if not low <= value <= high:
        raise ValueError(f"{name} is from {low} to {high}, got {value}")
    return value


def _whole(name: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} is an int, got {type(value).__name__}")
    if value < 1:
        raise ValueError(f"{name} is 1 or more, got {value}")
    return value


def _choice(name: str, value: object, allowed: tuple[object, ...]) -> Any:  # noqa: ANN401 - one of a Literal
    if not any(value is choice or (isinstance(choice, str) and value == choice) for choice in allowed):
        raise ValueError(f"{name} is one of {', '.join(map(repr, allowed))}, got {value!r}")
    return value


def _function(name: str, value: object) -> Any:  # noqa: ANN401 - its signature cannot be checked
    if not callable(value):
        raise TypeError(f"{name} is a function, got {type(value).__name__}")
    if iscoroutinefunction(value):
        raise TypeError(f"{name} is a plain function, got a coroutine function; nobody would await it")
    return value
