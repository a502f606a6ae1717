"""Logs that a measurement needs and nobody has to measure the writing of: written as bytes, without a store."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["write_many", "write_notes"]


def write_notes(root: Path, events: int) -> None:
    """Write a session of small events, a line each."""
    log = root / "--w--" / "notes" / "session.jsonl"
    log.parent.mkdir(parents=True)
    line = b'{"type":"my/note","seq":%d,"time":%d,"data":{"text":"a note of some words"}}\n'
    with log.open("wb") as file:
        file.write(b'{"type":"session","version":0,"id":"notes","createdAt":0,"cwd":"/w","delegationDepth":0}\n')
        file.writelines(line % (seq, 1_700_000_000_000 + seq) for seq in range(events))


def write_many(root: Path, sessions: int, *, beside: bool) -> None:
    """Write many logs of 300 events; *beside* each the lock and the index that a store leaves there."""
    line = b'{"type":"turn/start","seq":%d,"time":%d,"data":{"turn":1}}\n'
    head = b'{"type":"session","version":0,"id":"s%d","createdAt":%d,"cwd":"/p%d","delegationDepth":0}\n'
    for n in range(sessions):
        folder = root / f"--p{n % 20}--" / f"s{n}"
        folder.mkdir(parents=True)
        body = b"".join(line % (seq, 1_700_000_000_000 + n) for seq in range(300))
        log = folder / "session.jsonl"
        log.write_bytes(head % (n, n, n % 20) + body)
        if beside:
            (folder / "session.lock").touch()
            stat = log.stat()
            known = {"device": stat.st_dev, "inode": stat.st_ino, "size": stat.st_size}
            counted = {"mtimeNs": str(stat.st_mtime_ns), "turns": 300, "events": 300}
            (folder / "session.index").write_bytes(msgspec.json.encode(known | counted))
