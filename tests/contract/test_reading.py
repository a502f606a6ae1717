"""What every backend shows of a stored session: whole, from a seq on, and while somebody writes."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

from sessionstore.errors import DamagedLogError, SessionNotFoundError, UnsupportedFormatError
from sessionstore.recovery.findings import Verdict
from sessionstore.recovery.plan import plan_repair
from tests.contract.programs import CLOSED, OPEN, batch, events, header, store, write
from tests.recovery import logs

if TYPE_CHECKING:
    from tests.contract.kits import Kit


async def test_read_from_every_seq_is_the_exact_suffix(kit: Kit) -> None:
    """From each seq on come exactly the events from there; past the end nothing, however far."""
    await store(kit.open(), lines=OPEN)
    whole = events(OPEN)
    backend = kit.open()
    for seq in [*range(len(whole) + 2), 10**6, 2**53]:
        assert list(await backend.read_from("s1", seq)) == whole[seq:]
        assert list(await kit.open().read_from("s1", seq)) == whole[seq:]


async def test_read_from_has_stored_events_only(kit: Kit) -> None:
    """Closers that a resume would add are not stored, so they are not read."""
    await store(kit.open(), lines=OPEN)
    assert plan_repair((await kit.open().read("s1")).scan).closers
    assert list(await kit.open().read_from("s1", len(events(OPEN)))) == []


@pytest.mark.parametrize("seq", [True, False, 1.0, "1", None, b"1"])
async def test_read_from_wants_an_int(kit: Kit, seq: Any) -> None:
    """A seq of another type is refused before anything is read."""
    with pytest.raises(TypeError, match="int"):
        await kit.open().read_from("s1", seq)


@pytest.mark.parametrize("seq", [-1, -(2**70)])
async def test_read_from_wants_no_negative_seq(kit: Kit, seq: int) -> None:
    """A negative seq is refused: it never counts from the end."""
    with pytest.raises(ValueError, match="seq"):
        await kit.open().read_from("s1", seq)


async def test_read_from_an_absent_session(kit: Kit) -> None:
    """An absent session is not an empty one."""
    with pytest.raises(SessionNotFoundError):
        await kit.open().read_from("s1", 0)


async def test_read_from_follows_a_writer(kit: Kit) -> None:
    """A reader that asks for what is new after each batch gets every event once."""
    reader, backend = kit.open(), kit.open()
    writer = backend.writer(header())
    seen: list[Any] = []
    for start in range(0, len(CLOSED), 2):
        await writer.append(batch(CLOSED, start, min(start + 2, len(CLOSED))), sync=True)
        seen += await reader.read_from("s1", len(seen))
        assert len(seen) == writer.next_seq
    await writer.close()
    assert seen == events(CLOSED)


async def test_read_from_after_a_repair(kit: Kit) -> None:
    """A reader that knew the log before its torn end was cut reads the closers afterwards."""
    await store(kit.open(), lines=OPEN)
    reader = kit.open()
    count = len(await reader.read_from("s1", 0))
    kit.damage_tail("s1")
    assert len(await reader.read_from("s1", 0)) == count
    assert list(await reader.read_from("s1", count)) == []
    writer, stored = await kit.open().open("s1")
    report = await writer.repair(stored, plan_repair(stored.scan))
    await writer.close()
    assert list(await reader.read_from("s1", count)) == list(report.closers)


async def test_read_from_a_damaged_log(kit: Kit) -> None:
    """Nobody can say which events a damaged log holds, and that is what the error says."""
    await store(kit.open())
    reader = kit.open()
    await reader.read_from("s1", 3)
    kit.damage_middle("s1")
    for backend in (reader, kit.open()):
        with pytest.raises(DamagedLogError) as caught:
            await backend.read_from("s1", 3)
        assert caught.value.findings


async def test_torn_end_hides_nothing(kit: Kit) -> None:
    """A torn end is reported, the events in front of it are all shown, and nothing is changed by looking."""
    await store(kit.open())
    kit.damage_tail("s1")
    stored = await kit.open().read("s1")
    assert stored.scan.verdict is Verdict.TORN
    assert stored.writer == "none"
    assert list(stored.scan.events) == events(CLOSED)
    assert list(await kit.open().read_from("s1", 20)) == events(CLOSED)[20:]


async def test_reader_sees_whether_somebody_writes(kit: Kit) -> None:
    """While a writer holds the session readers are told so, and a cut line at the end is no finding."""
    backend = kit.open()
    writer = await write(backend, header(), OPEN)
    assert (await kit.open().read("s1")).writer == "live"
    kit.damage_tail("s1")
    stored = await kit.open().read("s1")
    assert stored.writer == "live"
    assert not stored.scan.findings
    assert stored.torn is None
    assert stored.scan.verdict is Verdict.INTERRUPTED
    assert list(stored.scan.events) == events(OPEN)
    await writer.close()
    assert (await kit.open().read("s1")).writer == "none"


async def test_readers_see_prefixes_while_a_writer_works(kit: Kit) -> None:
    """Whatever moment a reader comes at, it sees a beginning of the log and no damage."""
    backend = kit.open()
    await store(backend, "other")
    lines = [logs.event("my/plugin", seq, {"text": "x" * (seq * 37 % 500)})[:-1] for seq in range(60)]
    writer = await write(backend, header(), lines[:1])
    done = asyncio.Event()
    problems: list[str] = []

    async def look() -> None:
        reader, length = kit.open(), 0
        while not done.is_set():
            stored = await reader.read("s1")
            if stored.scan.findings or list(stored.scan.events) != events(lines[: len(stored.scan.log)]):
                problems.append(f"{stored.scan.verdict} {stored.scan.findings}")
            if len(stored.scan.log) < length:
                problems.append("went back")
            length = len(stored.scan.log)

    lookers = [asyncio.ensure_future(look()) for _ in range(2)]
    for start in range(1, len(lines)):
        await writer.append(batch(lines, start, start + 1), sync=start % 5 == 0)
    done.set()
    await asyncio.gather(*lookers)
    await writer.close()
    assert problems == []


async def test_what_is_read_does_not_change(kit: Kit) -> None:
    """A read keeps showing what it showed, whatever is stored afterwards."""
    backend = kit.open()
    writer = await write(backend, header(), CLOSED[:5])
    stored = await backend.read("s1")
    part = await backend.read_from("s1", 1)
    await writer.append(batch(CLOSED, 5), sync=True)
    await writer.close()
    assert list(stored.scan.events) == events(CLOSED[:5])
    assert list(part) == events(CLOSED[:5])[1:]


async def test_another_version_is_unsupported(kit: Kit) -> None:
    """A log of a newer version is shown as such, and read from a seq not at all."""
    if not hasattr(kit, "put"):
        pytest.skip("this backend stores no header line")
    await store(kit.open())
    kit.put("s1", kit.text("s1").replace(b'"version":0', b'"version":7', 1))  # type: ignore[attr-defined]
    stored = await kit.open().read("s1")
    assert stored.scan.verdict is Verdict.UNSUPPORTED
    with pytest.raises(UnsupportedFormatError) as caught:
        await kit.open().read_from("s1", 0)
    assert caught.value.direction == "newer"
    assert (await kit.open().list()).sessions[0].status == "unsupported"
