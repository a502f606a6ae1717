"""The installed command as a process of its own: pipes, terminals, real logs, and what happens without the extra."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from sessionstore import SessionStore
from tests.cli.logs import Log, demo, many
from tests.paths import NO_REAL_LOGS, REAL_LOGS, REPO

pytestmark = pytest.mark.slow

COMMAND = Path(sys.executable).with_name("sessionstore")


@pytest.fixture(autouse=True)
def _installed() -> None:
    """The console script has to be there."""
    if not COMMAND.exists():
        pytest.skip(f"the sessionstore command is not installed beside {sys.executable} (make install)")


def environment(**more: str) -> dict[str, str]:
    """An environment in which nothing of the user's settings is left."""
    keep = {
        name: value for name, value in os.environ.items() if name in {"PATH", "HOME", "LANG", "COVERAGE_PROCESS_START"}
    }
    return {**keep, "TZ": "UTC", "PYTHONWARNINGS": "error", **more}


def call(*arguments: str, root: Path, **more: str) -> subprocess.CompletedProcess[str]:
    """Run the installed command and wait for it."""
    return subprocess.run(
        [str(COMMAND), "--root", str(root), *arguments],
        capture_output=True, text=True, encoding="utf-8", env=environment(**more), check=False, timeout=60,
    )  # fmt: skip


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with every real log, each under an id of its own, as a store would have it."""
    root = tmp_path_factory.mktemp("real")
    if not REAL_LOGS.exists():
        demo().save(root)
        many(5).save(root)
        return root
    for path in sorted(REAL_LOGS.glob("*/*.jsonl")):
        header, _, rest = path.read_bytes().partition(b"\n")
        value = json.loads(header)
        value["id"] = f"{path.parent.name}-{path.stem}"
        value["cwd"] = "/srv/project"
        folder = root / "--srv-project--" / value["id"]
        folder.mkdir(parents=True)
        (folder / "session.jsonl").write_bytes(json.dumps(value).encode() + b"\n" + rest)
    return root


def test_all_real_logs_are_listed_and_checked(real: Path) -> None:
    """The list has a row for each, verify a verdict, and neither ends with an error that it does not document."""
    rows = json.loads(call("ls", "--all", "--json", root=real).stdout)["sessions"]
    assert len(rows) == sum(1 for _ in real.glob("*/*/session.jsonl"))
    listed = call("ls", "--all", "--full", root=real)
    assert listed.returncode == 0
    assert len(listed.stdout.splitlines()) == len(rows) + 1
    checked = call("verify", "--all", "--json", root=real)
    assert checked.returncode in {0, 1, 2, 3}
    assert len(json.loads(checked.stdout)) == len(rows)


@pytest.mark.skipif(not REAL_LOGS.exists(), reason=NO_REAL_LOGS)
def test_real_logs_of_every_kind_are_shown_and_exported(real: Path) -> None:
    """A sample of the real logs goes through every command that prints contents."""
    ids = sorted(path.parent.name for path in real.glob("*/*/session.jsonl"))
    for session_id in ids[::40]:
        for arguments in (
            ("show", session_id), ("stats", session_id, "--json"), ("export", session_id, "--format", "md", "--redact"),
            ("export", session_id, "--format", "html"), ("tail", session_id, "--raw"),
        ):  # fmt: skip
            result = call(*arguments, root=real)
            assert result.returncode == 0, (arguments, result.stderr)
            assert result.stdout or "damaged" in result.stderr, arguments
            assert "Traceback" not in result.stderr


@pytest.mark.parametrize("missing", ["click", "rich", "platformdirs"])
def test_without_the_extra_it_says_how_to_install_it(missing: str, tmp_path: Path) -> None:
    """Whichever part is missing: the install line, and exit code 64."""
    (tmp_path / f"{missing}.py").write_text(f"raise ModuleNotFoundError('no', name={missing!r})\n", encoding="utf-8")
    result = subprocess.run(
        [sys.executable, "-c", "import sys; from sessionstore.cli import main; sys.exit(main(['ls']))"],
        capture_output=True, text=True, check=False, env=environment(PYTHONPATH=f"{tmp_path}:{REPO}"),
    )  # fmt: skip
    assert result.returncode == 64
    assert 'pip install "sessionstore[cli]"' in result.stderr
    assert missing in result.stderr
    assert result.stdout == ""


@pytest.mark.parametrize("arguments", ["show many --full", "show many --raw", "export many --format md"])
def test_a_reader_that_has_enough_ends_it_quietly(tmp_path: Path, arguments: str) -> None:
    """`sessionstore show ... | head -1` is no error."""
    many(300).save(tmp_path)
    process = subprocess.Popen(
        [str(COMMAND), "--root", str(tmp_path), *arguments.split()],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(),
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.readline()
    process.stdout.close()
    assert process.stderr.read() == b""
    process.stderr.close()
    assert process.wait(timeout=60) == 0


@pytest.mark.parametrize("arguments", ["ls", "show demo", "export demo --format md", "verify demo", "show none"])
def test_closed_standard_streams_are_no_crash(tmp_path: Path, arguments: str) -> None:
    """Without standard input, output and error the exit code still says what happened."""
    demo().save(tmp_path)
    line = f"exec {COMMAND} --root {tmp_path} {arguments} <&- >&- 2>&-"
    done = subprocess.run(["/bin/sh", "-c", line], check=False, env=environment())
    assert done.returncode == (66 if "none" in arguments else 0)


def test_an_encoding_without_the_characters_is_no_crash(tmp_path: Path) -> None:
    """In an ASCII environment other characters are written as escapes."""
    demo().save(tmp_path)
    result = call("show", "demo", root=tmp_path, PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert result.returncode == 0
    assert "\\u7528" in result.stdout


def test_python_m_works_too(tmp_path: Path) -> None:
    """`python -m sessionstore.cli` is the same command."""
    result = subprocess.run(
        [sys.executable, "-m", "sessionstore.cli", "--version"], capture_output=True, text=True, check=True, cwd=REPO,
        env=environment(),
    )  # fmt: skip
    assert re.fullmatch(r"sessionstore, version \d+\.\d+\.\d+\n", result.stdout)


# Styles, and the spinner that says that something is being read.
OURS = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[2K|\x1b\[1A")


def in_terminal(*arguments: str, columns: int = 60, **more: str) -> str:
    """What the command writes to a terminal of that width."""
    import fcntl
    import struct
    import termios

    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    process = subprocess.Popen(
        [str(COMMAND), *arguments],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment(TERM="xterm", **more),
    )
    os.close(follower)
    parts: list[bytes] = []
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        ready, _, _ = select.select([leader], [], [], 0.2)
        if ready:
            try:
                piece = os.read(leader, 65536)
            except OSError:  # the other side is closed
                break
            if not piece:
                break
            parts.append(piece)
    os.close(leader)
    assert process.wait(timeout=10) == 0
    return b"".join(parts).decode()


def test_a_terminal_gets_styles_and_its_own_width_and_nothing_from_the_log(tmp_path: Path) -> None:
    """On a terminal there is colour, lines fit, and the log's own escape sequences are pictures."""
    from rich.cells import cell_len

    log = demo()
    log.begin("\x1b]0;pwned\x07\x1b[2J\u202e")
    log.end()
    log.save(tmp_path)
    out = in_terminal("--root", str(tmp_path), "show", "demo", columns=60)
    assert "\x1b[" in out
    plain = OURS.sub("", out)
    assert "\x1b" not in plain
    assert "\u241b]0;pwned\u2407\u241b[2J\\u202e" in plain
    shown = plain[plain.index("── Turn 1") :]
    assert max(cell_len(line) for line in shown.splitlines()) <= 60
    log.events[1]["data"]["content"][0]["text"] = "\x9b2J"  # a control character that JSON leaves as it is
    (stored,) = tmp_path.glob("*/*/session.jsonl")
    stored.write_bytes(log.text())
    for arguments in (("export", "demo", "--format", "jsonl"), ("show", "demo", "--raw")):
        raw = OURS.sub("", in_terminal("--root", str(tmp_path), *arguments))
        assert not set(raw) & set("\x1b\x9b")
        assert '"text":"\\u009b2J"' in raw.replace("\r\n", "")
    target = tmp_path / "out.jsonl"
    in_terminal("--root", str(tmp_path), "export", "demo", "--format", "jsonl", "-o", str(target))
    assert target.read_bytes() == log.text()


def test_the_completion_script_works_in_bash(tmp_path: Path) -> None:
    """Sourced into a bash, it completes an id."""
    bash = shutil.which("bash")
    if bash is None:
        pytest.skip("no bash here")
    demo().save(tmp_path)
    script = (
        f'eval "$({COMMAND} completion bash)"\n'
        f'COMP_WORDS=({COMMAND} show de); COMP_CWORD=2; _sessionstore_completion {COMMAND}; echo "${{COMPREPLY[@]}}"'
    )
    result = subprocess.run(
        [bash, "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=environment(SESSIONSTORE_ROOT=str(tmp_path)),
    )
    assert result.stdout.strip() == "demo-0198c0de"


async def read_until(stream: Any, text: str) -> str:
    """What a process writes, up to *text*."""
    seen = ""
    async with asyncio.timeout(30):
        while text not in seen:
            piece = await stream.read(4096)
            assert piece, f"ended without {text!r}: {seen}"
            seen += piece.decode()
    return seen


async def test_tail_f_shows_what_another_process_writes(tmp_path: Path) -> None:
    """Text appears while it is streamed, tools when they are done, and Ctrl-C ends it."""
    async with SessionStore(tmp_path, batch_window_ms=5) as store:
        session = await store.create("demo", cwd="/srv/project")
        log = Log("demo")
        log.begin("hello there")

        async def push() -> None:
            for event in log.events[session.seq :]:
                extra = {"source_event_seqs": event.get("sourceEventSeqs"), "surface_op": event.get("surfaceOp")}
                session.append(event["type"], event["data"], **{k: v for k, v in extra.items() if v is not None})
            await session.flush()

        await push()
        process = await asyncio.create_subprocess_exec(
            str(COMMAND), "--root", str(tmp_path), "tail", "-f", "demo", stdout=subprocess.PIPE, env=environment()
        )
        assert process.stdout is not None
        await read_until(process.stdout, "hello there")
        log.steps()
        log.chunk({"type": "block-start", "index": 0, "blockType": "text"})
        log.chunk({"type": "text-delta", "index": 0, "text": "streamed "})
        await push()
        await read_until(process.stdout, "streamed")
        log.chunk({"type": "text-delta", "index": 0, "text": "words"})
        call_block = {"type": "tool-call", "id": "c", "name": "run", "arguments": "{}"}
        message = {"role": "assistant", "id": "m", "source": {"kind": "model", "provider": "p", "model": "m"},
                   "content": [{"type": "text", "text": "streamed words"}, call_block]}  # fmt: skip
        log.add("assistant/message", {"turn": 1, "step": 1, "message": message}, surfaceOp="append")
        log.use("c", "run", {}, "tool output")
        log.done()
        log.end()
        await push()
        seen = await read_until(process.stdout, "Turn 1 completed")
        assert "words" in seen
        assert "tool output" in seen
        assert "streamed words" not in seen  # not a second time, whole
        process.send_signal(signal.SIGINT)
        assert await process.wait() == 130
