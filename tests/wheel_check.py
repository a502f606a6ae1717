"""Build the wheel, install it into empty environments, use it from another directory.  Run by `make wheel-check`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

REPO = Path(__file__).resolve().parent.parent

USE_IT = """
import asyncio, importlib, pathlib, sys
import sessionstore
from sessionstore.backends import base
from sessionstore.recovery import scan

here = pathlib.Path(sessionstore.__file__).resolve()
assert pathlib.Path(sys.prefix).resolve() in here.parents, f"not the installed one: {here}"
for short in ("backends", "recovery"):
    try:
        importlib.import_module(short)
    except ModuleNotFoundError:
        continue
    raise SystemExit(f"'import {short}' works: the folder leaked to the top level")
assert (here.parent / "py.typed").is_file(), "py.typed is missing"


async def main() -> None:
    async with sessionstore.SessionStore("sessions") as store:
        session = await store.create(cwd="/srv/project")
        session.append("turn/start", {"turn": 1, "trigger": {"kind": "message", "source": {"kind": "user"}}})
        assert await session.flush() == 1
    async with sessionstore.SessionStore("sessions") as store:
        again = await store.resume(session.id)
        assert [event.type for event in again.events] == ["turn/start", "turn/end"], again.events


asyncio.run(main())
print("the installed wheel created, closed and resumed a session")
"""


def run(*command: str | Path, cwd: Path | None = None) -> None:
    """Run one command with the caller's Python paths out of the way."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    subprocess.run([str(part) for part in command], check=True, cwd=cwd, env=env)


def contents(wheel: Path) -> None:
    """The wheel has every module under the one name, each once, and no link or test."""
    names = zipfile.ZipFile(wheel).namelist()
    for name in ("backends/base.py", "backends/jsonl/__init__.py", "recovery/scan.py", "store.py", "py.typed"):
        assert f"sessionstore/{name}" in names, f"the wheel lacks sessionstore/{name}"
    strangers = [name for name in names if not name.startswith(("sessionstore/", "sessionstore-"))]
    assert not strangers, f"the wheel carries {strangers}"


def environment(folder: Path, requirement: str) -> Path:
    """A new environment with *requirement* in it; its bin directory."""
    venv.create(folder, with_pip=True)
    run(folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check", requirement)
    return folder / "bin"


def main() -> None:
    """Build, look inside, install bare and with every extra, use both."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        # From a copy: setuptools would put what an earlier build left in build/ into this wheel.
        made = shutil.ignore_patterns(".git", ".venv*", ".*_cache", ".hypothesis", "build", "dist", "*.egg-info")
        shutil.copytree(REPO, folder / "source", symlinks=True, ignore=made)
        run(sys.executable, "-m", "build", "--wheel", "--outdir", folder / "dist", folder / "source")
        (wheel,) = (folder / "dist").glob("*.whl")
        contents(wheel)
        elsewhere = folder / "elsewhere"
        elsewhere.mkdir()
        bare = environment(folder / "bare", str(wheel))
        run(bare / "python", "-c", USE_IT, cwd=elsewhere)
        full = environment(folder / "full", f"{wheel}[cli,zstd]")
        run(full / "sessionstore", "--help", cwd=elsewhere)


if __name__ == "__main__":
    main()
