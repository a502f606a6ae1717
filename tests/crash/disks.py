"""File systems of our own to break: small ones in memory, and loop-mounted ones that can lose their power."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator
    from typing import Self

__all__ = ["FILE_SYSTEMS", "FileSystem", "LoopDisk", "no_loop", "no_mounts", "remount", "require", "tmpfs"]

FileSystem = Literal["ext4", "xfs"]
FILE_SYSTEMS: Final[tuple[FileSystem, ...]] = ("ext4", "xfs")

_SIZES: Final = {"ext4": "32M", "xfs": "300M"}  # the smallest that mkfs.xfs makes; the image is sparse
_SHUTDOWN: Final = 0x8004587D  # FS_IOC_SHUTDOWN
_NO_LOG_FLUSH: Final = 2


def no_mounts() -> str | None:
    """Why no file system can be mounted here, or ``None``."""
    if sys.platform != "linux":
        return "mounting needs Linux"
    if os.geteuid() != 0:
        return "mounting needs root"
    return None


def no_loop(kind: FileSystem = "ext4") -> str | None:
    """Why no loop device with a file system of this *kind* can be had here, or ``None``."""
    reason = no_mounts()
    if reason is None and not Path("/dev/loop-control").exists():
        reason = "there are no loop devices"
    if reason is None and shutil.which(f"mkfs.{kind}") is None:
        package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[kind]
        reason = f"mkfs.{kind} is not installed (apt-get install {package})"
    return reason


def require(reason: str | None) -> None:
    """Skip the test for *reason*, if there is one."""
    if reason is not None:
        pytest.skip(reason)


def _run(*command: object) -> None:
    done = subprocess.run([str(word) for word in command], check=False, capture_output=True)
    if done.returncode:
        raise OSError(f"{command[0]} failed: {done.stderr.decode(errors='replace').strip()}")


@contextmanager
def tmpfs(directory: Path, options: str) -> Generator[Path]:
    """A file system in memory at *directory*; the test is skipped where none can be mounted."""
    require(no_mounts())
    directory.mkdir()
    try:
        _run("mount", "-t", "tmpfs", "-o", options, "tmpfs", directory)
    except OSError as error:
        pytest.skip(str(error))
    try:
        yield directory
    finally:
        _run("umount", "-l", directory)


def remount(directory: Path, options: str) -> None:
    """Change how *directory* is mounted.  Raises ``OSError``."""
    _run("mount", "-o", f"remount,{options}", directory)


class LoopDisk:
    """A disk in a file, whose power can be cut.  Used as a context manager it is mounted, and unmounted at the end."""

    def __init__(
        self, place: Path, kind: FileSystem, *, size: str | None = None, options: tuple[str, ...] = ()
    ) -> None:
        self.kind: FileSystem = kind
        self.image = place / f"{kind}.img"
        self.path = place / f"{kind}.mounted"
        self.path.mkdir()
        _run("truncate", "-s", size or _SIZES[kind], self.image)
        _run(f"mkfs.{kind}", "-q", "-F" if kind == "ext4" else "-f", *options, self.image)

    def mount(self, options: str = "loop") -> None:
        """Mount it, replaying its journal.  Raises ``OSError``."""
        _run("mount", "-t", self.kind, "-o", options, self.image, self.path)

    def unmount(self) -> None:
        """Unmount it.  Raises ``OSError``."""
        _run("umount", self.path)

    def cut_power(self) -> None:
        """From now on nothing reaches the disk, and what was not synced never will."""
        fd = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(fd, _SHUTDOWN, struct.pack("I", _NO_LOG_FLUSH))
        finally:
            os.close(fd)

    def power_up(self) -> None:
        """After a cut: what a machine finds when it starts again."""
        self.unmount()
        self.mount()

    def device(self) -> str:
        """The name of the loop device, like ``loop0``."""
        with Path("/proc/mounts").open(encoding="utf-8") as mounts:
            found = [line.split()[0] for line in mounts if line.split()[1] == str(self.path)]
        return Path(found[0]).name

    def close(self) -> None:
        """Unmount it whatever its state.  Idempotent."""
        with contextlib.suppress(OSError):
            _run("umount", "-l", self.path)

    def __enter__(self) -> Self:
        self.mount()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
