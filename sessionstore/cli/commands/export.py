"""``sessionstore export``."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from sessionstore.cli.context import (
    contents_options,
    example,
    followed,
    inspect_session,
    load_transcript,
    open_store,
    root_of,
    root_option,
    run_async,
    session_argument,
)
from sessionstore.cli.terminal import json_text, safe_json
from sessionstore.lossless import encode
from sessionstore.transcript.html import render_html
from sessionstore.transcript.markdown import render_markdown
from sessionstore.transcript.redact import public_events, redact_text

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from sessionstore import Inspection
    from sessionstore.lossless import Json

__all__ = ["export"]


@click.command(
    short_help="Write md, html, json or jsonl.",
    epilog=example(
        "sessionstore export 0198c0de --format html -o run.html",
        "sessionstore export 0198c0de --format md --redact | less",
    ),
)
@session_argument
@click.option(
    "--format", "form", type=click.Choice(["md", "html", "json", "jsonl"]), required=True, help="What to write."
)
@click.option(
    "-o", "--output", type=click.Path(dir_okay=False, path_type=Path), help="Where to (default: standard output)."
)
@click.option("--force", is_flag=True, help="Overwrite the output file.")
@click.option("--all", "minor", is_flag=True, help="In Markdown, minor events too.")
@contents_options
@root_option
@click.pass_context
def export(
    context: click.Context, *, session_id: str, form: str, output: Path | None, force: bool, minor: bool, secrets: bool,
    hide_results: bool,
) -> None:  # fmt: skip
    """Write a session as Markdown, as one HTML page, as JSON, or as the lines of its log.

    html opens from disk without a network. json is the transcript for programs. jsonl is a log again: the header
    and one event per line. Secrets are redacted only with --redact, and only those with a known form.
    """

    async def work() -> Inspection:
        async with open_store(context) as store:
            return await inspect_session(store, session_id)

    inspection = run_async(work())
    _refuse_place(output, root_of(context))
    terminal = output is None and sys.stdout.isatty()
    pieces = _pieces(inspection, form, minor=minor, secrets=secrets, results=hide_results, terminal=terminal)
    with _opened(output, force=force) as file:
        for piece in pieces:
            file.write(piece)


def _pieces(
    inspection: Inspection, form: str, *, minor: bool, secrets: bool, results: bool, terminal: bool
) -> Iterator[bytes]:
    if form == "jsonl":
        for row in _jsonl(inspection, secrets=secrets, results=results, terminal=terminal):
            yield (safe_json(row.decode("utf-8", "backslashreplace")).encode() if terminal else row) + b"\n"
        return
    transcript = load_transcript(inspection, secrets=secrets, results=results)
    if form == "md":
        for line in render_markdown(transcript, minor=minor):
            yield line.encode("utf-8", "replace") + b"\n"
    elif form == "html":
        yield render_html(transcript).encode()
    else:
        yield json_text(transcript).encode() + b"\n"


def _jsonl(inspection: Inspection, *, secrets: bool, results: bool, terminal: bool) -> Iterator[bytes]:
    """The log as lines, without newlines.  Bytes that came from the log go out as they came, unless asked otherwise."""
    events = followed(inspection, "Exporting", quiet=terminal)
    if secrets or results:
        if inspection.header is not None:
            yield encode(_header(inspection.header.to_dict(), secrets=secrets))
        for value in public_events(events, secrets=secrets, results=results):
            yield encode(value)
        return
    if inspection.header is not None:
        yield inspection.header.to_json()
    for event in events:
        yield event.to_json()


def _header(header: dict[str, Json], *, secrets: bool) -> dict[str, Json]:
    return {key: redact_text(value) if secrets and isinstance(value, str) else value for key, value in header.items()}


def _refuse_place(output: Path | None, root: Path) -> None:
    """Refuse to write where sessions are: an export would replace a log, or lie beside one as if it belonged there."""
    if output is None or str(output) == "-":
        return
    # Not Path.resolve, which raises RuntimeError for links that go in circles.
    place, sessions = Path(os.path.realpath(output.parent), output.name), Path(os.path.realpath(root))
    # <root>/<project>/<session>/<file>, and deeper in the trash.
    if place.is_relative_to(sessions) and len(place.relative_to(sessions).parts) > 2:
        raise click.UsageError(f"{output} lies among the sessions in {root}; choose another place")


@contextlib.contextmanager
def _opened(output: Path | None, *, force: bool) -> Generator[BinaryIO]:
    """Where to write.  A file appears whole or not at all, and replaces another only when asked to.

    A device or a pipe is written to and never replaced.
    """
    if output is None or str(output) == "-":
        sys.stdout.flush()
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.exists() and not output.is_file():
        with output.open("wb") as file:
            yield file
        return
    if output.exists() and not force:
        raise click.UsageError(f"{output} exists; --force overwrites it")
    part = output.with_name(f".{output.name}.{os.getpid()}.part")
    try:
        with part.open("xb") as file:
            yield file
        part.replace(output)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
