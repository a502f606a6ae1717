"""Following logs of odd layout, and logs that others damage or mend meanwhile."""

from __future__ import annotations

from contextlib import aclosing
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from sessionstore import SessionStore
from sessionstore.backends.jsonl import JsonlBackend
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.follow import Delivered
from sessionstore.follow import _source as source_of
from sessionstore.recovery.scan import scan_log
from sessionstore.tail import TailError
from tests.recovery import logs
from tests.unit.jsonl_places import put, stored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from sessionstore import Event
    from sessionstore.backends.paths import Compression
    from sessionstore.follow import _Source as Source

CLOSED = logs.closed_log()
WHOLE = b"".join(CLOSED)
HEADER, BODY = CLOSED[0], b"".join(CLOSED[1:])
NEXT = logs.event("my/note", 23, {"n": "世"})


def cut_up(data: bytes, step: int) -> bytes:
    """Frames that end anywhere, as a compressor that knows nothing of lines writes them."""
    return b"".join(encode_frame(data[at : at + step]) for at in range(0, len(data), step))


LAYOUTS = {
    "blank line first": ("session.jsonl", b"\r\n \n" + WHOLE, NEXT),
    "nothing yet": ("session.jsonl", b"\n\n", WHOLE + NEXT),
    "half a header": ("session.jsonl", HEADER[:40], HEADER[40:] + BODY + NEXT),
    "carriage returns": ("session.jsonl", WHOLE.replace(b"\n", b"\r\n"), NEXT.replace(b"\n", b"\r\n")),
    "one frame": ("session.jsonl.zstd", encode_frame(WHOLE), encode_frame(NEXT)),
    "blank line in a frame of its own": (
        "session.jsonl.zstd",
        encode_frame(b"\n") + encode_frame(HEADER) + encode_frame(BODY),
        encode_frame(NEXT),
    ),
    "blank line before the header": ("session.jsonl.zstd", encode_frame(b"\n" + WHOLE), encode_frame(NEXT)),
    "an empty frame first": ("session.jsonl.zstd", encode_frame(b"") + encode_frame(WHOLE), encode_frame(NEXT)),
    "frames that end inside a line": ("session.jsonl.zstd", cut_up(WHOLE, 37), cut_up(NEXT, 5)),
    "frames that end inside the last line": (
        "session.jsonl.zstd",
        encode_frame(WHOLE + NEXT[:60]),
        encode_frame(NEXT[60:]),
    ),
}


@pytest.mark.parametrize("layout", LAYOUTS)
async def test_any_layout_is_followed(tmp_path: Path, layout: str) -> None:
    """Where lines and frames end is nobody's business: each event comes once, also what is written later."""
    name, before, after = LAYOUTS[layout]
    log = Path(put(str(tmp_path), "s1", before, name=name))
    seen: list[bytes] = []
    async with aclosing(Following(tmp_path)) as following:
        seen += await following.events()
        with log.open("ab") as file:
            file.write(after)
        seen += await following.events()
    assert seen == [event.to_json() for event in scan_log(WHOLE + NEXT).events]


class Following:
    """What :func:`sessionstore.follow.follow` does, look by look."""

    def __init__(self, root: Path) -> None:
        self._backend = JsonlBackend(root)
        self._delivered = Delivered("s1", 0)
        self._source: Source | None = None

    async def events(self) -> list[bytes]:
        """The events that came since the last call."""
        found: list[Event] = []
        if self._source is None:
            stored = await self._backend.read("s1")
            self._source = await source_of(self._backend, "s1", stored, self._delivered)
            found += self._fresh(stored.scan.log.events())
        for _ in range(3):
            found += self._fresh(await self._source.poll())
        return [event.to_json() for event in found]

    def _fresh(self, events: Sequence[Event]) -> Sequence[Event]:
        fresh = self._delivered.fresh(events)
        for event in fresh:
            self._delivered.note(event)
        return fresh

    async def aclose(self) -> None:
        """Close the log."""
        if self._source is not None:
            await self._source.close()


@pytest.mark.parametrize("compression", ["none", "zstd"])
@pytest.mark.parametrize("tail", [bytes(1728), b"\0", logs.user(23)[:40], b"\x28\xb5\x2f\xfd\x04"])
async def test_a_torn_end_is_waited_for_until_it_is_cut(tmp_path: Path, compression: Compression, tail: bytes) -> None:
    """NULs, half a line and half a frame are no reason to stop: a resume cuts them, and its events come."""
    log = Path(stored(str(tmp_path), "s1", WHOLE, compression))
    with log.open("ab") as file:
        file.write(encode_frame(tail)[:-3] if compression == "zstd" and tail.startswith(b"{") else tail)
    async with aclosing(Following(tmp_path)) as following, SessionStore(tmp_path) as store:
        assert len(await following.events()) == 23
        session = await store.resume("s1")
        session.append("my/note", {"n": 1})
        await session.flush()
        assert await following.events() == [session.events[23].to_json()]


async def test_a_salvage_ends_following_and_names_where_to_go_on(tmp_path: Path) -> None:
    """Another file in the log's place is told with the seq, from which following goes on."""
    log = Path(put(str(tmp_path), "s1", WHOLE))
    async with aclosing(Following(tmp_path)) as following, SessionStore(tmp_path) as store:
        assert len(await following.events()) == 23
        with log.open("ab") as file:
            file.write(b"\xff\n" + logs.turn_end(23))
        await store.repair("s1", dry_run=False)
        with pytest.raises(TailError, match="salvage"):
            await following.events()
        async with aclosing(store.follow("s1", 23)) as events:
            assert (await anext(events)).to_json() + b"\n" == logs.turn_end(23)
