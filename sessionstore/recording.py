"""What turns and steps share: the place of messages in the log, and closing what was opened.

One :class:`Recorder` belongs to one session.  Messages that are injected while tools
run wait in it until the last result of their batch is in.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final

from sessionstore.drafts import Content, JsonLike, draft_message
from sessionstore.errors import InvariantError, PendingLimitError, StoreClosedError, WrongThreadError
from sessionstore.lossless import encode
from sessionstore.progress import last_turn
from sessionstore.recovery.format import TURN_END, TURN_START
from sessionstore.tasks import raise_all

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sessionstore.lossless import Json
    from sessionstore.recorder import Turn
    from sessionstore.session import Session

__all__ = ["Failures", "Recorder"]

_REST_OF_A_TURN: Final = 1024  # bytes, generously: the boundaries of a turn, and what an event has beside its payload
_HOST: Final = {"kind": "plugin", "plugin": "host"}


class Failures:
    """What failed while something was closed: a veto must not keep the rest from being closed."""

    def __init__(self) -> None:
        self._errors: list[Exception] = []

    def note(self, work: Callable[[], object]) -> None:
        """Do *work*; what it raises is raised at the end.  What keeps every append from working is raised now."""
        try:
            work()
        except (PendingLimitError, StoreClosedError, WrongThreadError):
            raise
        except Exception as error:  # noqa: BLE001 - raised by raise_them
            self._errors.append(error)

    def raise_them(self) -> None:
        """Raise what failed: one error as it is, several as an :class:`ExceptionGroup`."""
        raise_all("not everything could be recorded", self._errors)


class Recorder:
    """Records one session: at most one turn at a time, and the messages that wait for their place in it.

    *flush* is the session's, *new_id* makes message ids, *strict* says that every event must be in a turn.
    """

    def __init__(
        self, session: Session, flush: Callable[[], Awaitable[int]], *, new_id: Callable[[], str], strict: bool = False
    ) -> None:
        self.session = session
        self.flush = flush
        self.new_id = new_id
        self.current: Turn | None = None
        self._strict = strict
        self._held: list[tuple[str, dict[str, Json]]] = []

    def inject(self, content: Content | JsonLike, *, source: JsonLike | None = None, id: str | None = None) -> None:
        """Append a message from outside the conversation, or hold it back while tools run.

        Raises:
            As :meth:`Session.append`.
        """
        message = self.message(content, _HOST if source is None else source, id)
        if self.current is not None or not self._strict or last_turn(self.session._log)[1]:
            self.place("user/message", message)
            return
        turn = self.next_turn()
        trigger = {"kind": "injection", "source": message["source"]}
        self._ask_for_room(message, trigger)
        self.session.append(TURN_START, {"turn": turn, "trigger": trigger})
        failures = Failures()
        failures.note(lambda: self.session.append("user/message", message, surface_op="append"))
        failures.note(lambda: self.session.append(TURN_END, {"turn": turn, "reason": {"kind": "completed"}}))
        failures.raise_them()

    def _ask_for_room(self, message: dict[str, Json], trigger: dict[str, Json]) -> None:
        """Refuse a turn of its own for *message* before it is begun, where it would not fit as a whole.

        Raises:
            As :meth:`Session.append`.
        """
        self.session._enter()  # only the session's own thread may ask
        sink = self.session._sink
        if sink is not None:
            size = len(encode(message, what="user/message")) + len(encode(trigger)) + _REST_OF_A_TURN
            sink.admit(size, events=3)

    def message(self, content: Content | JsonLike, source: JsonLike | None, id: str | None) -> dict[str, Json]:
        """The payload of a user-role message, as :func:`draft_message`, with a new id where none is given."""
        return draft_message(content, source=source, id=self.new_id() if id is None else id)

    def place(self, type_: str, payload: dict[str, Json]) -> None:
        """Append a message event now, or after the last result of the tools that are running.  Raises as append."""
        self._held.append((type_, payload))
        try:
            self.release()
        except BaseException:
            if self._held and self._held[-1][1] is payload:
                self._held.pop()  # refused: it is the caller's again
            raise

    def release(self) -> None:
        """Append what was held back, in order, unless a call of the open step is still unanswered.

        What a checker vetoes is dropped and raised once all the rest was appended.
        """
        if self.current is not None and self.current.progress.catch_up().pending:
            return
        failures = Failures()
        while self._held:
            type_, payload = self._held[0]
            failures.note(partial(self.session.append, type_, payload, surface_op="append"))
            del self._held[0]
        failures.raise_them()

    def next_turn(self) -> int:
        """The number of the next turn, from the log.

        Raises:
            InvariantError: a turn is open.
        """
        number, is_open = last_turn(self.session._log)
        if is_open:
            raise InvariantError(f"turn {number} is still open", event_type=TURN_START, seq=self.session.seq)
        return number + 1

    async def settle(self, close: Callable[[], None], error: BaseException | None, *, flush: bool) -> None:
        """Close something on the way out, whatever *error* is on its way; then *flush*.

        With an *error* the failures are noted on it, and it goes on; without one they are raised.
        """
        failures: list[Exception] = []
        try:
            await self._close(close)
        except Exception as problem:  # noqa: BLE001 - raised or noted below
            failures.append(problem)
        try:
            if flush and not any(isinstance(failure, StoreClosedError) for failure in failures):
                await self.flush()
        except Exception as problem:  # noqa: BLE001 - raised or noted below
            if problem not in failures:
                failures.append(problem)
        if error is not None:
            for failure in failures:
                error.add_note(f"while the turn was closed: {type(failure).__name__}: {failure}")
        elif len(failures) == 1:
            raise failures[0]
        elif failures:
            raise ExceptionGroup("the turn could not be closed", failures)

    async def _close(self, close: Callable[[], None]) -> None:
        try:
            close()
        except PendingLimitError:
            await self.flush()  # makes room, or says why there is none
            close()
