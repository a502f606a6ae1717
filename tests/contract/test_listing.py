"""What every backend lists: every session, newest activity first, bad ones with a status."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sessionstore.backends.base import SessionInfo, make_page
from sessionstore.errors import SessionNotFoundError
from tests.contract.programs import CLOSED, CREATED, OPEN, batch, header, ids, store, write
from tests.recovery import logs

if TYPE_CHECKING:
    from tests.contract.kits import Kit


def _at(time: int) -> list[bytes]:
    """A session whose only event happened at *time*."""
    return [logs.event("my/plugin", 0, {}, time=time)[:-1]]


async def test_empty_place_lists_nothing(kit: Kit) -> None:
    """Where nothing was ever stored the list is empty and not an error."""
    page = await kit.open().list()
    assert page.sessions == ()
    assert page.next is None


async def test_row_says_what_header_and_tail_say(kit: Kit) -> None:
    """A row has the header's fields, the time of the last event and the stored size."""
    await store(kit.open(), lines=CLOSED)
    (row,) = (await kit.open().list()).sessions
    assert (row.id, row.status, row.cwd, row.created_at) == ("s1", "ok", "/srv/project", CREATED)
    assert row.last_time == CREATED + 22
    assert not row.approximate
    assert row.bytes > 0
    assert (row.title, row.turns, row.events, row.detail) == (None, None, None, None)


async def test_last_time_of_a_packed_row(kit: Kit) -> None:
    """The last event may be a member of a packed row: its own time counts."""
    lines = [logs.turn_start(0)[:-1], logs.row(1, ["a", "b", "c"], dt=[10, 500])[:-1]]
    await store(kit.open(), lines=lines)
    (row,) = (await kit.open().list()).sessions
    assert row.last_time == CREATED + 1 + 510


async def test_session_without_events_was_active_when_created(kit: Kit) -> None:
    """A session that has only a header is listed with the time of its creation."""
    await store(kit.open(), lines=[])
    (row,) = (await kit.open().list()).sessions
    assert (row.status, row.last_time, row.approximate) == ("ok", CREATED, False)


async def test_newest_activity_comes_first(kit: Kit) -> None:
    """Sessions are ordered by their last event, not by creation, with ties by id."""
    backend = kit.open()
    for id, time in {"old": CREATED + 1, "b": CREATED + 5, "a": CREATED + 5, "new": CREATED + 9}.items():
        await store(backend, id, _at(time), created_at=CREATED + 100 - time % 10)
    assert await ids(backend) == ["new", "a", "b", "old"]


async def test_pages_cover_everything_once(kit: Kit) -> None:
    """Pages of any size give each session once, in the order of the whole list."""
    backend = kit.open()
    for n in range(7):
        await store(backend, f"s{n}", _at(CREATED + n // 2))
    whole = await ids(backend)
    for limit in (1, 2, 3, 7, 8):
        seen: list[str] = []
        after = None
        while True:
            page = await backend.list(limit=limit, after=after)
            assert len(page.sessions) <= limit
            seen += [row.id for row in page.sessions]
            after = page.next
            if after is None:
                break
        assert seen == whole


async def test_page_does_not_shift(kit: Kit) -> None:
    """A session that appears in front of a page, or vanishes there, neither repeats nor hides another."""
    backend = kit.open()
    for n in range(4):
        await store(backend, f"s{n}", _at(CREATED + n))
    first = await backend.list(limit=2)
    assert [row.id for row in first.sessions] == ["s3", "s2"]
    await store(backend, "newest", _at(CREATED + 50))
    await backend.delete("s3")
    assert await ids(backend, after=first.next) == ["s1", "s0"]


@pytest.mark.parametrize("limit", [0, -1])
async def test_limit_is_at_least_one(kit: Kit, limit: int) -> None:
    """A page of nothing would never end: such a limit is refused."""
    with pytest.raises(ValueError, match="limit"):
        await kit.open().list(limit=limit)


async def test_filter_by_working_directory(kit: Kit) -> None:
    """The filter compares the header's cwd, not a directory name; ``None`` means "has none"."""
    backend = kit.open()
    places = {"a": "/p/新聞", "b": "/p/暫存", "c": "/p-a", "d": "/p/a", "e": None, "f": "/root", "g": "/"}
    for id, cwd in places.items():
        await store(backend, id, cwd=cwd)
    for id, cwd in places.items():
        assert await ids(backend, cwd=cwd) == [id]
    assert sorted(await ids(backend)) == sorted(places)
    assert await ids(backend, cwd="/nowhere") == []


async def test_held_session_is_live(kit: Kit) -> None:
    """A session that somebody holds is listed as live, also with a write in progress."""
    backend = kit.open()
    writer = await write(backend, header(), OPEN)
    assert (await kit.open().list()).sessions[0].status == "live"
    kit.damage_tail("s1")
    assert (await kit.open().list()).sessions[0].status == "live"
    await writer.close()
    assert (await kit.open().list()).sessions[0].status == "ok"


async def test_bad_sessions_are_rows(kit: Kit) -> None:
    """Torn, damaged and empty sessions are listed beside good ones, and each can be deleted."""
    backend = kit.open()
    for id in ("good", "torn", "damaged", "empty"):
        await store(backend, id)
    kit.damage_tail("torn")
    kit.damage_middle("damaged")
    kit.damage_all("empty")
    rows = {row.id: row for row in (await kit.open().list()).sessions}
    assert {id: row.status for id, row in rows.items()} == {
        "good": "ok",
        "torn": "ok",
        "damaged": "damaged",
        "empty": "empty",
    }
    assert rows["damaged"].detail
    for id in rows:
        assert (await backend.delete(id)).id == id
    assert await ids(backend) == []


async def test_listed_and_readable_are_the_same(kit: Kit) -> None:
    """What is listed can be read by the id listed, and what can be read is listed."""
    backend = kit.open()
    for n in range(4):
        await store(backend, f"s{n}", cwd=("/a", "/b", None, "/a/b")[n])
    kit.damage_middle("s1")
    kit.damage_all("s2")
    listed = await ids(backend)
    assert sorted(listed) == ["s0", "s1", "s2", "s3"]
    for id in listed:
        await backend.read(id)
    await backend.delete("s3")
    assert "s3" not in await ids(backend)
    with pytest.raises(SessionNotFoundError):
        await backend.read("s3")


async def test_listing_changes_nothing(kit: Kit) -> None:
    """Looking at the list leaves every revision as it was."""
    backend = kit.open()
    await store(backend)
    kit.damage_tail("s1")
    before = (await backend.read("s1")).revision
    await kit.open().list()
    assert (await kit.open().read("s1")).revision == before


async def test_index_adds_to_the_row_until_the_log_changes(kit: Kit) -> None:
    """Title and counts are shown for the log they were noted for, and not for another."""
    backend = kit.open()
    writer = await write(backend, header(), CLOSED[:11])
    await backend.write_index("s1", title="Grüße", turns=1, events=17)
    (row,) = (await kit.open().list()).sessions
    assert (row.title, row.turns, row.events) == ("Grüße", 1, 17)
    await writer.append(batch(CLOSED, 11), sync=True)
    (row,) = (await kit.open().list()).sessions
    assert (row.title, row.turns, row.events) == (None, None, None)
    await backend.write_index("s1", title=None, turns=2, events=23)
    await writer.close()
    (row,) = (await kit.open().list()).sessions
    assert (row.title, row.turns, row.events) == (None, 2, 23)


async def test_index_of_an_absent_session_is_no_error(kit: Kit) -> None:
    """The index is never needed: where it cannot be written nobody is told."""
    backend = kit.open()
    await backend.write_index("no such", title="x", turns=1, events=1)
    await backend.write_index("", title="x", turns=1, events=1)
    await store(backend)
    await backend.write_index("s1", title="\ud800" * 5000, turns=1, events=1)
    assert await ids(backend) == ["s1"]


ROWS = st.lists(
    st.tuples(st.text(max_size=3), st.integers(-3, 3) | st.none()), max_size=12, unique_by=lambda row: row[0]
)


@given(rows=ROWS, limit=st.integers(1, 5))
def test_paging_any_rows(rows: list[tuple[str, Any]], limit: int) -> None:
    """Paging through any rows gives each of them once and in one order, activity unknown or negative included."""
    infos = [SessionInfo(id=id, status="ok", last_time=time) for id, time in rows]
    whole = make_page(infos, limit=None, after=None).sessions
    assert sorted(row.id for row in whole) == sorted(row.id for row in infos)
    seen: list[SessionInfo] = []
    after = None
    while True:
        page = make_page(reversed(infos), limit=limit, after=after)
        seen += page.sessions
        after = page.next
        if after is None:
            break
    assert seen == list(whole)


async def test_page_is_its_rows(kit: Kit) -> None:
    """A page is iterated and counted as its rows, so that nobody has to know the field."""
    await store(kit.open(), lines=CLOSED)
    page = await kit.open().list()
    assert [info.id for info in page] == [info.id for info in page.sessions] == ["s1"]
    assert len(page) == 1
