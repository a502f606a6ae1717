"""Conformance, theme F: forks."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from sessionstore import DamagedLogError, ForkError
from tests.conformance.build import closed_turn, say, turn_end, turn_start

if TYPE_CHECKING:
    from sessionstore import Session, SessionStore
    from tests.conformance.places import Place


async def refused(store: SessionStore, *args: Any, code: str) -> None:
    """A fork that fails with *code* and makes no child."""
    before = {row.id for row in (await store.list()).sessions}
    with pytest.raises(ForkError) as caught:
        await store.fork(*args)
    assert caught.value.code == code
    assert {row.id for row in (await store.list()).sessions} == before


async def test_an_empty_source_gives_an_empty_child_with_lineage(place: Place) -> None:
    """Nothing to copy, but a parent."""
    async with place.store() as store:
        source = await store.create("s", cwd="/srv", delegation_depth=1)
        child = await store.fork(source, None, "c")
        assert (child.seq, child.header.parent_session, child.header.seed_length) == (0, "s", 0)
        assert (child.header.cwd, child.header.delegation_depth) == ("/srv", 1)


async def test_the_default_boundary_is_the_last_event(place: Place) -> None:
    """The child has every event, immutable and its own, and a header that says where it is from."""
    async with place.store() as store:
        source = await store.create("s", cwd="/srv")
        closed_turn(source)
        child = await store.fork(source, child_id="c")
        assert child.events == source.events
        assert (child.header.parent_session, child.header.seed_length, child.header.cwd) == ("s", 6, "/srv")
        assert child.first_live_seq == 6
        assert child.durable_seq == 6
        say(child, "only here")
        say(source, "only there")
        assert child.events[6] != source.events[6]
        with pytest.raises(AttributeError):
            child.events[0].seq = 5  # type: ignore[misc]


async def test_log_only_events_after_a_closed_turn_are_included(place: Place) -> None:
    """A title set between turns belongs to the history that is copied."""
    async with place.store() as store:
        source = await store.create("s")
        closed_turn(source)
        source.append("session/title", {"title": "x"})
        child = await store.fork(source)
        assert child.events[-1].type == "session/title"


async def test_an_earlier_closed_boundary_is_allowed_while_a_turn_is_open(place: Place) -> None:
    """What comes after the boundary does not matter."""
    async with place.store() as store:
        source = await store.create("s")
        closed_turn(source)
        source.append("turn/start", turn_start(2))
        child = await store.fork(source, 5)
        assert child.events == source.events[:6]


@pytest.mark.parametrize(
    "kind", ["completed", "aborted", "error", "disposed", "blocked", "max-tokens", "interrupted", "later"]
)
async def test_every_end_of_a_turn_is_a_boundary(place: Place, kind: str) -> None:
    """However a turn ended, it ended."""
    async with place.store() as store:
        source = await store.create("s")
        source.append("turn/start", turn_start())
        reason = {"kind": kind, "step": 1, "message": "x"} if kind == "error" else {"kind": kind}
        source.append("turn/end", {"turn": 1, "reason": reason})
        assert (await store.fork(source)).seq == 2


@pytest.mark.parametrize("boundary", [-1, 6, 2**60, 0.5, True, "0", None], ids=repr)
async def test_a_boundary_that_is_no_seq_is_refused(place: Place, boundary: Any) -> None:
    """Negative, past the end, fractional, no number; on an empty source there is no seq at all."""
    async with place.store() as store:
        source, empty = await store.create("s"), await store.create("empty")
        closed_turn(source)
        if boundary is not None:
            await refused(store, source, boundary, code="INVALID_BOUNDARY")
        await refused(store, empty, 0, code="INVALID_BOUNDARY")


async def test_a_damaged_source_is_refused(place: Place) -> None:
    """A stored log whose seqs do not continue is not copied."""
    async with place.store() as store:
        source = await store.create("s")
        closed_turn(source)
    lines = place.read("s").splitlines(keepends=True)
    place.write("s", b"".join([*lines[:2], *lines[3:]]))
    async with place.store() as store:
        with pytest.raises(DamagedLogError):
            await store.fork("s", None, "c")
        assert [row.id for row in (await store.list()).sessions] == ["s"]


async def test_an_unknown_id_and_a_dead_object_are_refused(place: Place) -> None:
    """No such id; an object that was disposed; an old object of an id that is open anew."""
    async with place.store() as store:
        await refused(store, "nobody", code="SESSION_NOT_FOUND")
        old = await store.create("s")
        closed_turn(old)
        await old.dispose()
        await refused(store, old, code="SESSION_NOT_LIVE")
        await store.resume("s")
        await refused(store, old, code="SESSION_NOT_LIVE")


@pytest.mark.parametrize("boundary", range(6))
async def test_a_boundary_inside_an_open_turn_is_refused(place: Place, boundary: int) -> None:
    """Anywhere between a turn's start and its end."""
    async with place.store() as store:
        source = await store.create("s")
        closed_turn(source)
        if boundary == 5:
            assert (await store.fork(source, boundary)).seq == 6
        else:
            await refused(store, source, boundary, code="OPEN_TURN")


async def test_a_taken_child_id_is_refused_first(place: Place) -> None:
    """Open or stored, and before the boundary is looked at."""
    async with place.store() as store:
        source, taken = await store.create("s"), await store.create("taken")
        closed_turn(source)
        say(taken)
        await refused(store, source, 99, "taken", code="SESSION_ALREADY_EXISTS")
        await taken.dispose()
        await refused(store, source, 99, "taken", code="SESSION_ALREADY_EXISTS")
        await refused(store, "nobody", 99, "taken", code="SESSION_ALREADY_EXISTS")


async def test_a_stored_source_is_read_as_inspect_reads_it(place: Place) -> None:
    """An interrupted log is forked with its turn closed, and is itself not touched."""
    async with place.store() as store:
        source = await store.create("s")
        source.append("turn/start", turn_start())
        await source.flush()
        before = place.read("s")
        await source.dispose()
    async with place.store() as store:
        child = await store.fork("s", None, "c")
        assert [e.type for e in child.events] == ["turn/start", "turn/end"]
        assert place.read("s") == before


async def test_brackets_are_never_inherited_open(place: Place) -> None:
    """Newer writers mark inherited brackets with an event; here a fork inherits only closed turns, so there is none."""
    async with place.store() as store:
        source = await store.create("s")
        closed_turn(source)
        child = await store.fork(source, child_id="c")
        assert "session/end-seed" not in {e.type for e in child.events}
        child.append("turn/start", turn_start(2))
        child.append("turn/end", turn_end(2))
        grandchild: Session = await store.fork(child, child_id="g")
        assert (grandchild.header.parent_session, grandchild.header.seed_length) == ("c", 8)
