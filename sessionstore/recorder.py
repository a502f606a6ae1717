"""The recorder: turns and steps that are closed on every path.

An agent's loop brackets its work with ``async with session.turn() as turn`` and
``async with turn.step() as step``.  What is open, which calls are unanswered and
which number comes next is read from the log, never kept in a counter, so events
appended directly, or by somebody else, are seen too.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, cast

from msgspec import UNSET, Struct

from sessionstore.drafts import Content, JsonLike, draft_result, text_of
from sessionstore.errors import InvariantError
from sessionstore.lossless import decode, encode
from sessionstore.opaque import plain
from sessionstore.progress import Progress
from sessionstore.recording import Failures
from sessionstore.recovery.closers import unanswered_result
from sessionstore.recovery.format import TURN_END, TURN_START
from sessionstore.vocabulary import AssistantChunk, validate_payload

if TYPE_CHECKING:
    from collections.abc import Mapping
    from types import TracebackType
    from typing import NoReturn, Self

    from sessionstore.events import Event
    from sessionstore.messages import StreamChunk
    from sessionstore.recording import Recorder

__all__ = ["Step", "Turn"]

_MESSAGE_LIMIT: Final = 2_000  # characters of an exception's text that a turn/end keeps
_USER: Final = {"kind": "user"}


class Turn:
    """One turn: ``async with session.turn() as turn``.

    Entering appends ``turn/start``.  Leaving, on any path, answers the calls of an open step, closes the step,
    appends what was injected, then ``turn/end``, and flushes.  The end's reason is ``completed`` (or what
    :meth:`end` set), ``max-tokens`` when the last model stream finished so, ``aborted`` on a cancellation or
    KeyboardInterrupt, and ``error`` (step, message, class name) on an :class:`Exception`, which goes on its way.
    """

    def __init__(self, recorder: Recorder, trigger: JsonLike | None = None) -> None:
        self._recorder = recorder
        self._session = recorder.session
        self._trigger: JsonLike = {"kind": "message", "source": _USER} if trigger is None else trigger
        self._reason: object = None
        self._number = 0
        self.progress: Progress

    @property
    def number(self) -> int:
        """The turn's number; 0 until it was entered."""
        return self._number

    def user(self, content: Content | JsonLike, *, source: JsonLike | None = None, id: str | None = None) -> Event:
        """Append the prompt, a ``user/message``: a text, content blocks, or a whole message.

        *source* defaults to the user, *id* to a new one.  Raises :class:`InvariantError` outside the turn, and as
        :meth:`Session.append`.
        """
        self.check_open("user/message")
        message = self._recorder.message(content, _USER if source is None else source, id)
        return self._session.append("user/message", message, surface_op="append")

    def inject(self, content: Content | JsonLike, *, source: JsonLike | None = None, id: str | None = None) -> None:
        """As :meth:`StoredSession.inject`."""
        self._recorder.inject(content, source=source, id=id)

    def steer(self, content: Content | JsonLike, *, source: JsonLike | None = None, id: str | None = None) -> None:
        """Append a ``steering/message`` of the user; while tools run it is held back until the last result is in.

        Raises as :meth:`user`.
        """
        self.check_open("steering/message")
        message = self._recorder.message(content, _USER if source is None else source, id)
        self._recorder.place("steering/message", {"turn": self._number, "message": message})

    def step(self) -> Step:
        """A step that starts when it is entered: ``async with turn.step() as step``."""
        return Step(self, self._recorder)

    def end(self, reason: JsonLike) -> None:
        """Set the reason of a turn that ends without an exception, for instance ``{"kind": "blocked"}``.

        Raises:
            InvalidEventError: it is none.  Now, not at the end of the turn, which could not be closed then.
            InvariantError: outside the turn.
        """
        self.check_open(TURN_END)
        payload = {"turn": self._number, "reason": plain(reason)}
        validate_payload(TURN_END, encode(payload, what=TURN_END))
        self._reason = decode(encode(payload["reason"]))

    def check_open(self, event_type: str) -> None:
        """Refuse an event of this turn before it was entered and after it was left.

        Raises:
            InvariantError: it is not the session's turn.
        """
        if self._recorder.current is not self:
            raise InvariantError(
                "its turn is not open; use it inside `async with session.turn() as turn`",
                event_type=event_type,
                seq=self._session.seq,
            )

    async def __aenter__(self) -> Self:
        number = self._recorder.next_turn()
        event = self._session.append(TURN_START, {"turn": number, "trigger": plain(self._trigger)})
        self._number = number
        self._reason = None
        self.progress = Progress(self._session._log, event.seq)
        self._recorder.current = self
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._recorder.settle(lambda: self._close(error), error, flush=True)
        finally:
            self._recorder.current = None

    def _close(self, error: BaseException | None) -> None:
        work = self.progress.catch_up()
        if work.turn != self._number:
            return  # somebody closed it
        failures = Failures()
        failures.note(self.close_step)
        failures.note(self._recorder.release)
        end = {"turn": self._number, "reason": self._end_reason(error)}
        failures.note(lambda: self._session.append(TURN_END, end))
        failures.raise_them()

    def _end_reason(self, error: BaseException | None) -> object:
        if error is None:
            default = {"kind": "max-tokens" if self.progress.hit_max_tokens else "completed"}
            return default if self._reason is None else self._reason
        if not isinstance(error, Exception):
            return {"kind": "aborted"}
        return {
            "kind": "error",
            "step": self.progress.last_step,
            "message": text_of(error)[:_MESSAGE_LIMIT],
            "code": type(error).__name__,
        }

    def close_step(self) -> None:
        """Answer every unanswered call of the open step, append what was held back, close the step; or nothing."""
        work = self.progress.catch_up()
        if work.step is None or work.turn != self._number:
            return
        append, failures = self._session.append, Failures()
        for call in work.pending:
            data, sources = unanswered_result(call, turn=self._number, seq=self._session.seq)
            failures.note(partial(append, "tool/result", data, surface_op="append", source_event_seqs=sources))
        failures.note(self._recorder.release)
        failures.note(partial(append, "step/end", {"turn": self._number, "step": work.step}))
        failures.raise_them()


class Step:
    """One step of a turn, a model call and the tools it asked for: ``async with turn.step() as step``.

    Leaving, on any path, appends a ``tool/result`` for every unanswered call, by the same rules as the repair
    after a crash, then ``step/end``.
    """

    def __init__(self, turn: Turn, recorder: Recorder) -> None:
        self._turn = turn
        self._recorder = recorder
        self._session = recorder.session
        self._number = 0
        self._open = False
        self._chunks: list[int] = []
        self._calls: dict[str, int] = {}

    @property
    def number(self) -> int:
        """The step's number within its turn; 0 until it was entered."""
        return self._number

    async def request(self) -> int:
        """Flush before a model call: when this returns the request is on the disk and the money may be spent.

        Returns ``durable_seq``; raises as :meth:`StoredSession.flush`, and then the model must not be called.
        """
        return await self._recorder.flush()

    def chunk(self, chunk: JsonLike) -> Event:
        """Append one piece of the model's stream.

        Raises:
            InvariantError: outside the step (as all methods that append).
            As :meth:`Session.append`.
        """
        if not self._open:
            self._refuse("assistant/chunk")
        # Once per token: a Struct goes as it is, the session checks it either way.
        if isinstance(chunk, Struct):
            event = self._session.append(
                AssistantChunk(turn=self._turn.number, step=self._number, chunk=cast("StreamChunk", chunk))
            )
        else:
            event = self._session.append("assistant/chunk", {**self._place("assistant/chunk"), "chunk": chunk})
        self._chunks.append(event.seq)
        return event

    def message(self, message: JsonLike, *, usage: JsonLike | None = None) -> Event:
        """Append the assembled answer, citing the chunks of this step; its role and a missing id are filled in.

        Raises as :meth:`Session.append`.
        """
        whole = plain(message)
        data = {**self._place("assistant/message"), "message": whole}
        if isinstance(whole, dict):
            data["message"] = {"role": "assistant", **whole, "id": whole.get("id") or self._recorder.new_id()}
        if usage is not None:
            data["usage"] = plain(usage)
        return self._session.append(
            "assistant/message", data, surface_op="append", source_event_seqs=self._chunks or None
        )

    async def call(self, call_id: str, name: str, arguments: str | Mapping[str, object]) -> Event:
        """Record that a tool is about to run, and flush: **only when this has returned may the tool run**.

        *arguments* are the JSON text that the model produced (a mapping is encoded).  Raises as append and
        :meth:`StoredSession.flush`; the tool must not run then.
        """
        text = arguments if isinstance(arguments, str) else encode(plain(arguments), what="tool/call").decode()
        data = {**self._place("tool/call"), "callId": call_id, "name": name, "arguments": text}
        event = self._session.append("tool/call", data)
        self._calls[call_id] = event.seq
        await self._recorder.flush()
        return event

    def result(
        self,
        call_id: str,
        content: Content,
        *,
        is_error: bool | None = None,
        error: JsonLike | None = None,
        meta: object = UNSET,
        id: str | None = None,
    ) -> Event:
        """Append what a call returned; after the last one of the batch, what was injected meanwhile.

        *error* is ``{"name", "code"}`` and makes *is_error* true unless that is given; *meta* is the tool's own
        JSON.  Raises :class:`InvariantError` for a call that this step does not know or that has a result, and
        as :meth:`Session.append`.
        """
        place = self._place("tool/result")
        sources = self._answerable(call_id)
        message_id = self._recorder.new_id() if id is None else id
        data = place | draft_result(call_id, content, is_error=is_error, error=error, meta=meta, id=message_id)
        event = self._session.append("tool/result", data, surface_op="append", source_event_seqs=sources)
        self._calls.pop(call_id, None)
        self._recorder.release()
        return event

    def _answerable(self, call_id: object) -> tuple[int, ...] | None:
        """The sources of a result for *call_id*."""
        for call in self._turn.progress.catch_up().pending:
            if call.call_id == call_id:
                return None if call.call_seq is None else (call.call_seq,)
        if isinstance(call_id, str) and call_id in self._calls:  # recorded, though no message asked for it
            return (self._calls[call_id],)
        raise InvariantError(
            f"call {call_id!r} is not open in this step: it was never asked for, or has its result",
            event_type="tool/result",
            seq=self._session.seq,
        )

    def _place(self, event_type: str) -> dict[str, object]:
        if not self._open:
            self._refuse(event_type)
        return {"turn": self._turn.number, "step": self._number}

    def _refuse(self, event_type: str) -> NoReturn:
        raise InvariantError(
            "its step is not open; use it inside `async with turn.step() as step`",
            event_type=event_type,
            seq=self._session.seq,
        )

    async def __aenter__(self) -> Self:
        self._turn.check_open("step/start")
        progress = self._turn.progress
        work = progress.catch_up()
        if work.turn != self._turn.number or work.step is not None:
            reason = f"turn {self._turn.number} is not open" if work.step is None else f"step {work.step} is still open"
            raise InvariantError(reason, event_type="step/start", seq=self._session.seq)
        number = progress.last_step + 1
        self._session.append("step/start", {"turn": self._turn.number, "step": number})
        self._number, self._open = number, True
        self._chunks, self._calls = [], {}
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open = False
        await self._recorder.settle(self._close, error, flush=False)

    def _close(self) -> None:
        if self._turn.progress.catch_up().step == self._number:
            self._turn.close_step()
