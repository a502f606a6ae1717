"""Numbers as people read them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

__all__ = ["EPOCH", "clock", "duration", "moment", "plural", "size", "tokens"]

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def moment(epoch_ms: int | None, zone: tzinfo | None = None, *, seconds: bool = True) -> str:
    """A time as ``2026-07-13 15:51:24`` in *zone* (``None``: the machine's); ``-`` where there is none."""
    if epoch_ms is None:
        return "-"
    try:
        when = (EPOCH + timedelta(milliseconds=epoch_ms)).astimezone(zone)
    except (OverflowError, ValueError):
        return f"{epoch_ms} ms"  # any safe integer is a legal time; years end at 9999
    return when.strftime("%Y-%m-%d %H:%M:%S" if seconds else "%Y-%m-%d %H:%M")


def clock(epoch_ms: int, zone: tzinfo | None = None) -> str:
    """The time of day of an event."""
    shown = moment(epoch_ms, zone)
    return shown if shown.endswith(" ms") else shown[11:]


def duration(ms: int | None) -> str:
    """``850 ms``, ``4.2 s``, ``3 min 05 s``, ``2 h 07 min``, ``3 d 04 h``."""
    if ms is None:
        return "-"
    if ms < 1000:
        return f"{ms} ms"
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    if minutes < 60:
        return f"{minutes} min {seconds:02d} s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    days, hours = divmod(hours, 24)
    return f"{days} d {hours:02d} h"


def size(count: int) -> str:
    """Bytes as ``512 B``, ``27.7 MB`` (powers of 1000, as disks are sold and ``ls -lh --si`` counts)."""
    if count < 1000:
        return f"{count} B"
    value = float(count)
    unit = "B"
    for unit in ("kB", "MB", "GB", "TB"):  # noqa: B007  # the unit that fits is used below
        value /= 1000
        if value < 999.5:
            break
    return f"{value:.1f} {unit}" if value < 99.95 else f"{value:.0f} {unit}"


def tokens(count: int) -> str:
    """Tokens as ``950``, ``12.3k``, ``1.2M``."""
    if count < 1000:
        return str(count)
    if count < 999_950:
        return f"{count / 1000:.1f}k"
    return f"{count / 1_000_000:.1f}M"


def plural(count: int, one: str, many: str | None = None) -> str:
    """``1 turn``, ``2 turns``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}".replace(",", "\u2009" if count >= 10_000 else "")
