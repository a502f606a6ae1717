"""The commands, run in this process: what they print, what they refuse, and how they exit."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import click
import pytest
from click.testing import CliRunner

from sessionstore import ForkError, SessionExistsError, SessionLockedError, SessionStore, StorageError
from sessionstore.backends.jsonl.frames import encode_frame
from sessionstore.backends.paths import project_name
from sessionstore.cli import main
from sessionstore.cli.app import app
from sessionstore.cli.codes import ExitCode, code_of
from sessionstore.cli.context import short_ids
from sessionstore.follow import FollowError
from tests.cli.logs import Log, demo

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.cli.conftest import Result

Run = "Callable[..., Result]"
DEMO = "demo-0198c0de"


def small(root: Path, session_id: str, **header: Any) -> Path:
    """A session of one short turn below *root*."""
    log = Log(session_id, **header)
    log.begin("hello")
    log.end()
    return log.save(root)


# Listing


def test_ls_shows_what_header_and_tail_tell(run: Callable[..., Result]) -> None:
    """A row has project, short id, size, last activity and status; --full adds title, turns and events."""
    out = run("ls").out
    assert re.search(r"project\s+demo-019\s.*17\.\d kB\s+2026-09-21 15:15\s+ok", out)
    assert "Fix the hanging test" in run("ls", "--full").out


def test_ls_pages_newest_first(run: Callable[..., Result], root: Path) -> None:
    """The pages, put together, are all sessions once, newest first."""
    for number in range(7):
        log = Log(f"s{number}")
        log.time += number * 60_000
        log.begin("hi")
        log.end()
        log.save(root)
    whole = [row["id"] for row in run("ls", "--json", "--all").json()["sessions"]]
    assert whole[0] == DEMO
    assert whole[1:] == [f"s{number}" for number in reversed(range(7))]
    paged: list[str] = []
    after: list[str] = []
    while True:
        page = run("ls", "--json", "--limit", "3", *after).json()
        paged += [row["id"] for row in page["sessions"]]
        if page["next"] is None:
            break
        after = ["--after", page["next"]]
    assert paged == whole
    assert "there are more: sessionstore ls --after" in run("ls", "--limit", "3").err
    assert run("ls", "--after", "nonsense").code == 64


def test_ls_filters_by_the_cwd_of_the_header(run: Callable[..., Result], root: Path) -> None:
    """--cwd compares the header's directory, --no-cwd finds sessions without one."""
    log = Log("homeless", cwd=None)
    log.begin("hi")
    log.end()
    log.save(root, "_no-cwd")

    def ids(*arguments: str) -> list[str]:
        return [row["id"] for row in run("ls", "--json", *arguments).json()["sessions"]]

    assert ids("--cwd", "/srv/project") == [DEMO]
    assert ids("--cwd", "/srv") == []
    assert ids("--no-cwd") == ["homeless"]


def test_ls_says_that_the_sessions_are_elsewhere(run: Callable[..., Result], root: Path) -> None:
    """Where a filter leaves nothing, the filter is the reason, and how many there are without it is said."""
    assert "no sessions of /srv; 1 with another working directory or none" in run("ls", "--cwd", "/srv").err
    assert "no sessions without a working directory; 1 with one" in run("ls", "--no-cwd").err
    assert "no sessions behind this position" in run("ls", "--after", "0:x").err
    (root / "--srv-project--").rename(root / "--srv--")
    assert "no sessions here; --root" in run("ls", "--cwd", "/srv", "--root", str(root / "--srv--")).err


def test_ls_finds_a_working_directory_however_it_is_spelled(run: Callable[..., Result], root: Path) -> None:
    """A slash at the end or twice, in the header or in the option, is the same directory, also over pages."""
    for index, cwd in enumerate(("/srv/p/", "/srv/p", "/srv//p/.", "/srv/p/q")):
        log = Log(f"s{index}", cwd=cwd)
        log.begin("hi")
        log.end()
        log.save(root, project_name(cwd))
    for spelled in ("/srv/p", "/srv/p/", "/srv/./p//"):
        listed = run("ls", "--json", "--cwd", spelled).json()
        assert (sorted(row["id"] for row in listed["sessions"]), listed["next"]) == (["s0", "s1", "s2"], None)
    found: list[str] = []
    after: list[str] = []
    for rows in (2, 1):
        page = run("ls", "--json", "--cwd", "/srv/p", "--limit", "2", *after).json()
        assert len(page["sessions"]) == rows
        found += [row["id"] for row in page["sessions"]]
        after = ["--after", page["next"]] if page["next"] else []
    assert (sorted(found), after) == (["s0", "s1", "s2"], [])


@pytest.mark.parametrize("columns", ["\u00b2", "\u0664\u0662", "x", "-3", "0", "9" * 5000])
def test_a_width_that_is_no_number_is_no_width(
    columns: str, run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """COLUMNS is set by shells and by accident."""
    plain = run("ls")
    monkeypatch.setenv("COLUMNS", columns)
    monkeypatch.setenv("LINES", columns)
    assert run("ls") == plain
    assert "not found" in run("show", "nobody").err


@pytest.mark.parametrize("name", ["session.jsonl", "session.jsonl.zstd"])
def test_ls_calls_empty_what_verify_calls_empty(name: str, run: Callable[..., Result], root: Path) -> None:
    """A file of NULs is looked at to its end, up to some length; a line behind them is seen."""
    folder = root / "--srv-project--" / "bad"
    folder.mkdir()
    for content, status in ((b"", "empty"), (b"x\n" if name == "session.jsonl" else encode_frame(b"x\n"), "damaged")):
        with (folder / name).open("wb") as file:
            file.seek(3 << 20)
            file.truncate()
            file.write(content)
        assert {row["id"]: row["status"] for row in run("ls", "--json").json()["sessions"]}["bad"] == status
        assert run("verify", "bad").out.startswith(f"bad: {status}")


@pytest.mark.parametrize(
    "content", [b"", b"\0" * 100, b"not json\n", b'{"type":"session","version":99,"id":"bad"}\n', b"\xff\xfe\n{}\n"]
)
def test_a_bad_session_never_stops_a_listing(content: bytes, run: Callable[..., Result], root: Path) -> None:
    """Whatever lies in the root, the good sessions are listed and the bad one has a status."""
    folder = root / "--srv-project--" / "bad"
    folder.mkdir()
    (folder / "session.jsonl").write_bytes(content)
    for arguments in (("ls",), ("ls", "--full"), ("du",), ("verify", "--all")):
        result = run(*arguments)
        assert result.code < 64
    rows = {row["id"]: row["status"] for row in run("ls", "--json").json()["sessions"]}
    assert rows[DEMO] == "ok"
    assert rows["bad"] in {"damaged", "unsupported", "empty", "unreadable"}


def test_an_empty_root_and_a_root_that_is_not_there(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing to list is no error."""
    assert main(["--root", str(tmp_path), "ls"]) == 0
    assert main(["ls", "--root", str(tmp_path / "nowhere")]) == 0
    assert main(["ls", "--json", "--root", str(tmp_path / "nowhere")]) == 0
    captured = capsys.readouterr()
    assert "no sessions here" in captured.err
    assert json.loads(captured.out) == {"sessions": [], "next": None}


# Ids and roots


def test_ids_may_be_shortened_while_unambiguous(run: Callable[..., Result], root: Path) -> None:
    """The beginning of an id is enough; an exact id wins over longer ones; several matches are named."""
    small(root, "demo-0198ffff")
    small(root, "demo")
    assert run("path", "demo-0198c").out.strip().endswith(f"{DEMO}/session.jsonl")
    assert run("path", "demo").out.strip().endswith("/demo/session.jsonl")
    result = run("path", "demo-01")
    assert result.code == ExitCode.USAGE
    assert "demo-0198c0de, demo-0198ffff" in result.err
    assert run("show", "nobody").code == ExitCode.NOT_FOUND


def test_short_ids_tell_every_id_from_the_others() -> None:
    """Each is a beginning of its own id only, unless one id is the beginning of another."""
    ids = ["0198c0de-1111", "0198c0de-1122", "0198c0df", "zz", "a-very-long-identifier"]
    short = short_ids(ids)
    assert short == {
        "0198c0de-1111": "0198c0de-111",
        "0198c0de-1122": "0198c0de-112",
        "0198c0df": "0198c0df",
        "zz": "zz",
        "a-very-long-identifier": "a-very-l",
    }


def test_the_root_comes_from_the_option_the_environment_or_the_user(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option wins over the variable, before and after the command; the default is in the user's data folder."""
    monkeypatch.setenv("SESSIONSTORE_ROOT", str(root))
    assert main(["path", "demo"]) == 0
    assert str(root) in capsys.readouterr().out
    assert main(["path", "demo", "--root", str(tmp_path / "other")]) == ExitCode.NOT_FOUND
    assert main(["--root", str(tmp_path / "other"), "path", "demo"]) == ExitCode.NOT_FOUND
    monkeypatch.delenv("SESSIONSTORE_ROOT")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    capsys.readouterr()
    main(["show", "nobody"])
    assert str(tmp_path / "data") not in capsys.readouterr().out
    demo().save(tmp_path / "data" / "sessionstore" / "sessions")
    assert main(["path", "demo"]) == 0


# Showing


def test_show_raw_prints_the_stored_bytes(run: Callable[..., Result]) -> None:
    """--raw is the log without its header, and --turn cuts it at the turn's boundaries."""
    lines = demo().text().decode().splitlines()[1:]
    assert run("show", DEMO, "--raw").out.splitlines() == lines
    assert run("show", DEMO, "--raw", "--turn", "2").out.splitlines() == lines[54:71]


def test_show_json_is_the_transcript(run: Callable[..., Result]) -> None:
    """The JSON has what the text shows."""
    found = run("show", DEMO, "--json").json()
    assert [turn["ended"] for turn in found["turns"]] == ["completed", "interrupted", "aborted"]
    only = run("show", DEMO, "--json", "--turn", "3").json()
    assert [turn["number"] for turn in only["turns"]] == [3]
    assert {entry["turn"] for entry in only["entries"]} == {3}


def test_show_refuses_what_makes_no_sense(run: Callable[..., Result]) -> None:
    """An unknown turn, and two forms at once."""
    assert run("show", DEMO, "--turn", "9").code == ExitCode.USAGE
    assert run("show", DEMO, "--raw", "--json").code == ExitCode.USAGE
    assert run("show").code == ExitCode.USAGE
    assert run("nonsense").code == ExitCode.USAGE


def test_nothing_in_a_log_reaches_the_terminal_as_an_instruction(run: Callable[..., Result], root: Path) -> None:
    """Escape sequences in messages, tool names, ids, paths and titles come out as pictures."""
    evil = "\x1b]0;pwned\x07\x9b2J\u202e"
    log = Log(f"evil{evil}", cwd=f"/srv/{evil}")
    log.begin(evil)
    log.add("session/title", {"title": evil, "messageSeqs": [1], "source": {"kind": "user"}})
    log.steps()
    log.say(evil, (evil, evil, {"x": evil}), reasoning=evil)
    log.use(evil, evil, {"x": evil}, evil)
    log.add("todo/write", {"todos": [{"content": evil, "status": evil}]})
    log.add("llm/retry", {"failure": {"message": evil, "code": evil}})
    log.done()
    log.end("error", step=1, message=evil, code=evil)
    folder = root / "--srv-project--" / "evil"
    folder.mkdir(parents=True)
    # Under a wrong name the store calls it damaged; what it says then must be safe, too.
    (folder / "session.jsonl").write_bytes(log.text())
    good = Log("good")
    good.events = log.events
    good.save(root)
    for arguments in (
        ("ls",), ("ls", "--full"), ("ls", "--json"), ("show", "good", "--full", "--all", "--reasoning"), ("show", "good"),
        ("show", "good", "--json"), ("stats", "good"), ("stats", "good", "--json"), ("verify", "--all"), ("du",),
        ("du", "--sessions"), ("tail", "good"), ("export", "good", "--format", "md"), ("show", "evil"), ("path", "evil"),
    ):  # fmt: skip
        result = run(*arguments)
        for text in (result.out, result.err):
            assert not set(text) & set("\x1b\x07\x9b\u202e"), arguments


def test_styles_appear_only_where_asked_for(run: Callable[..., Result], monkeypatch: pytest.MonkeyPatch) -> None:
    """A pipe gets plain text, FORCE_COLOR gets colour, NO_COLOR takes the colours away."""
    assert "\x1b[" not in run("show", DEMO).out
    monkeypatch.setenv("FORCE_COLOR", "1")
    coloured = run("show", DEMO).out
    assert re.search(r"\x1b\[[0-9;]*3[0-9]m", coloured)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not re.search(r"\x1b\[(?:[0-9;]*;)?3[0-9](?:;[0-9]+)*m", run("show", DEMO).out)


def test_a_damaged_session_is_shown_as_far_as_it_is_good(run: Callable[..., Result], root: Path) -> None:
    """show, stats and export warn and go on; verify says 2."""
    (log,) = root.glob("*/*/session.jsonl")
    lines = log.read_bytes().split(b"\n")
    log.write_bytes(b"\n".join([*lines[:30], b"garbage", *lines[31:]]))
    result = run("show", DEMO)
    assert result.code == 0
    assert "damaged" in result.err
    assert "This log is damaged" in result.out
    assert "I'll look at the test first." in result.out
    assert "This log is" in run("export", DEMO, "--format", "md").out
    assert run("verify", DEMO).code == 2


# Verifying


def broken(how: str) -> bytes:
    """The demo's log after something happened to it."""
    data = demo().text()
    changed = {
        "nothing": data,
        "cut": b"\n".join(data.split(b"\n")[:40]) + b"\n",
        "half a line": data + b'{"type":"turn/st',
        "a seq": data.replace(b'"seq":20,', b'"seq":21,', 1),
        "emptied": b"",
        "a version": data.replace(b'"version":0', b'"version":7', 1),
    }
    return changed[how]


@pytest.mark.parametrize(
    ("how", "code", "verdict"),
    [
        ("nothing", 0, "clean"),
        ("cut", 1, "interrupted"),
        ("half a line", 1, "torn"),
        ("a seq", 2, "damaged"),
        ("emptied", 3, "empty"),
        ("a version", 3, "unsupported"),
    ],
)
def test_verify_exits_as_the_specification_says(
    how: str, code: int, verdict: str, run: Callable[..., Result], root: Path
) -> None:
    """0 clean, 1 mends itself, 2 repairable, 3 not readable; the findings name line and byte."""
    (log,) = root.glob("*/*/session.jsonl")
    log.write_bytes(broken(how))
    result = run("verify", DEMO)
    assert result.code == code
    assert f"{DEMO}: {verdict}" in result.out
    (report,) = run("verify", DEMO, "--json").json()
    assert (report["verdict"], report["exitCode"]) == (verdict, code)
    if verdict in {"torn", "damaged"}:
        assert re.search(r"line \d+, byte \d+: ", result.out)
        assert report["findings"][0]["line"] > 1


def test_verify_of_several_exits_with_the_worst(run: Callable[..., Result], root: Path) -> None:
    """All sessions are looked at, the highest code counts, --quiet leaves out the clean ones."""
    path = small(root, "torn")
    path.write_bytes(path.read_bytes() + b"{")
    result = run("verify", "--all", "--quiet")
    assert result.code == 1
    assert DEMO not in result.out
    assert "torn: torn" in result.out
    assert run("verify").code == ExitCode.USAGE
    assert run("verify", "--all", DEMO).code == ExitCode.USAGE


async def test_a_live_writer_with_an_open_turn_is_no_fault(root: Path) -> None:
    """While somebody writes, an open turn is what is to be expected."""
    async with SessionStore(root) as store:
        session = await store.create("live", cwd="/srv/project")
        session.append("turn/start", {"turn": 1})
        await session.flush()
        import asyncio

        code = await asyncio.to_thread(main, ["--root", str(root), "verify", "live"])
        assert code == 0
        assert await asyncio.to_thread(main, ["--root", str(root), "rm", "live"]) == ExitCode.LOCKED


# Changing


def test_fork_prints_the_new_id(run: Callable[..., Result]) -> None:
    """The child holds the events up to SEQ, and an open turn is refused."""
    child = run("fork", DEMO, "--at", "53").out.strip()
    assert run("show", child, "--raw").out.count("\n") == 54
    assert f"forked from {DEMO}" in run("show", child).out
    made = run("fork", DEMO, "--at", "53", "--id", "mine", "--json").json()
    assert made == {"id": "mine", "parent": DEMO, "events": 54}
    refused = run("fork", DEMO, "--at", "20")
    assert refused.code == ExitCode.REFUSED
    assert "OPEN_TURN" in refused.err
    assert run("fork", DEMO, "--id", "mine").code == ExitCode.REFUSED


def test_rm_trash_and_restore(run: Callable[..., Result], root: Path) -> None:
    """What is removed can be brought back with all its bytes, until the trash is emptied."""
    before = demo().text()
    assert "moved to the trash" in run("rm", "demo").out
    assert run("show", "demo").code == ExitCode.NOT_FOUND
    (entry,) = run("trash", "ls", "--json").json()
    assert entry["id"] == DEMO
    assert DEMO in run("trash", "ls").out
    assert "trash: 17" in run("du").out
    assert run("trash", "restore", "demo").code == 0
    (log,) = root.glob("*/demo*/session.jsonl")
    assert log.read_bytes() == before
    run("rm", "demo", "--json")
    assert "1 session removed for good" in run("trash", "empty", "--yes").out
    assert run("trash", "restore", "demo").code == ExitCode.NOT_FOUND
    assert "the trash is empty" in run("trash", "ls").err


def test_emptying_the_trash_asks_first(root: Path) -> None:
    """Without --yes and without an answer nothing is removed."""
    assert main(["--root", str(root), "rm", "demo"]) == 0
    runner = CliRunner()
    refused = runner.invoke(app, ["--root", str(root), "trash", "empty"], input="n\n")
    assert refused.exit_code == 1
    assert "Remove 1 session" in refused.output
    assert runner.invoke(app, ["--root", str(root), "trash", "empty"], input="y\n").exit_code == 0


def test_export_writes_files_and_overwrites_none(run: Callable[..., Result], tmp_path: Path) -> None:
    """-o makes a file; an existing one needs --force; jsonl is the log again."""
    target = tmp_path / "out.jsonl"
    assert run("export", DEMO, "--format", "jsonl", "-o", str(target)).code == 0
    assert target.read_bytes() == demo().text()
    assert run("export", DEMO, "--format", "jsonl", "-o", str(target)).code == ExitCode.USAGE
    assert run("export", DEMO, "--format", "md", "-o", str(target), "--force").code == 0
    assert target.read_text(encoding="utf-8").startswith("# Fix the hanging test")
    assert run("export", DEMO, "--format", "pdf").code == ExitCode.USAGE


def test_exported_jsonl_is_a_log_that_a_store_reads(run: Callable[..., Result], tmp_path: Path) -> None:
    """The lines can be put below another root, redacted ones too."""
    for number, options in enumerate(((), ("--redact", "--hide-results"))):
        folder = tmp_path / str(number) / "--srv-project--" / DEMO
        folder.mkdir(parents=True)
        run("export", DEMO, "--format", "jsonl", "-o", str(folder / "session.jsonl"), *options)
        assert main(["--root", str(tmp_path / str(number)), "verify", "--all"]) == 0


def test_du_adds_up(run: Callable[..., Result], root: Path) -> None:
    """By project and by session the totals are the bytes of the files."""
    small(root, "other", cwd="/srv/project")
    (root / "--srv-project--" / DEMO / "session.torn-1").write_bytes(b"x" * 1000)
    bytes_ = sum(path.stat().st_size for path in root.rglob("*") if path.is_file())
    for options in ((), ("--sessions",)):
        found = run("du", "--json", *options).json()
        assert found["total"] == bytes_
        assert sum(row["beside"] for row in found["rows"]) == 1000
    assert "and 1 more rows" in run("du", "--sessions", "--limit", "1").out


def test_tail_shows_the_end(run: Callable[..., Result]) -> None:
    """The last entries, or the last events."""
    out = run("tail", DEMO, "-n", "2").out
    assert "broke off" in out
    assert "Turn 3" in out
    assert "Was it released?" not in out
    assert run("tail", DEMO, "--raw", "-n", "3").out.splitlines() == demo().text().decode().splitlines()[-3:]


def test_repair_plans_then_repairs_then_has_nothing_to_do(run: Callable[..., Result], root: Path) -> None:
    """Without --apply nothing is written; with it the log is good again and the damaged one is kept."""
    (log,) = root.glob("*/*/session.jsonl")
    bad = demo().text().replace(b'"seq":20,', b'"seq":20;', 1)
    log.write_bytes(bad)
    assert run("verify", DEMO).code == 2
    plan = run("repair", "demo")
    assert plan.code == 2
    assert "dry run" in plan.out
    assert "--apply" in plan.out
    assert log.read_bytes() == bad
    done = run("repair", "demo", "--apply", "--json").json()
    assert (done["changed"], done["exitCode"]) == (True, 0)
    (kept,) = log.parent.glob("session.jsonl.damaged-*")
    assert kept.read_bytes() == bad
    assert run("verify", DEMO).code == 0
    again = run("repair", "demo", "--apply")
    assert again.code == 0
    assert run("repair", "demo", "--json").json()["changed"] is False
    assert run("repair", "nobody").code == ExitCode.NOT_FOUND


def test_lost_events_stand_out_after_a_repair(run: Callable[..., Result], root: Path) -> None:
    """What a repair could not bring back is marked where it stood."""
    (log,) = root.glob("*/*/session.jsonl")
    lines = demo().text().split(b"\n")
    log.write_bytes(b"\n".join([*lines[:27], b"garbage", *lines[28:]]))
    assert run("repair", "demo", "--apply").code == 0
    assert "⚠ Events lost" in run("show", "demo").out
    assert "⚠ Events lost" in run("export", "demo", "--format", "md").out


# Exit codes and help


def test_errors_have_their_exit_codes() -> None:
    """A script can tell a locked session from a missing one."""
    assert code_of(SessionLockedError("x")) == 75
    assert code_of(SessionExistsError("x")) == 73
    assert code_of(ForkError("SESSION_NOT_FOUND", "x", session_id="x")) == 66
    assert code_of(ForkError("OPEN_TURN", "x", session_id="x")) == 73
    assert code_of(StorageError("read")) == 74
    assert code_of(FollowError("x", seq=1, reason="x")) == 65
    assert code_of(OSError()) == 74
    assert code_of(ValueError()) == 70


def every_command(group: click.Group, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    """All commands and groups below *group*."""
    found: list[tuple[tuple[str, ...], click.Command]] = []
    for name, command in group.commands.items():
        found.append(((*path, name), command))
        if isinstance(command, click.Group):
            found += every_command(command, (*path, name))
    return found


@pytest.mark.parametrize("path", [path for path, _ in every_command(app)], ids=" ".join)
def test_every_help_has_a_text_and_an_example(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """--help says what the command does and shows one way to call it."""
    assert main([*path, "--help"]) == 0
    out = capsys.readouterr().out
    assert "Example:" in out
    assert f"sessionstore {' '.join(path)}" in out
    assert "\b" not in out


def test_every_option_has_a_help_text() -> None:
    """No option is left unexplained."""
    for path, command in every_command(app):
        for parameter in command.params:
            if isinstance(parameter, click.Option):
                assert parameter.help, (path, parameter.name)


def test_ids_are_completed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The shell gets commands, options and the ids below the root."""
    from click.shell_completion import ShellComplete

    monkeypatch.setenv("SESSIONSTORE_ROOT", str(root))
    shell = ShellComplete(app, {}, "sessionstore", "_SESSIONSTORE_COMPLETE")

    def words(arguments: list[str], incomplete: str) -> list[str]:
        return [item.value for item in shell.get_completions(arguments, incomplete)]

    assert words(["show"], "de") == [DEMO]
    assert words(["--root", str(root / "none"), "show"], "de") == []
    assert words([], "sh") == ["show"]
    assert "--hide-results" in words(["show"], "--h")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_is_printed(shell: str, run: Callable[..., Result]) -> None:
    """Each shell gets a script that calls the command back."""
    out = run("completion", shell).out
    assert "_SESSIONSTORE_COMPLETE" in out
    assert run("completion", "tcsh").code == ExitCode.USAGE
