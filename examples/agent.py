"""A small command-line agent whose sessions survive a crash.

    python agent.py "Put milk on the list."
    python agent.py --resume SESSION "Go on."

The model is a script (scripted_model.py); the tools, the streaming and the session are real.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import scripted_model

from sessionstore import BlockEnd, SessionStore, TextDelta, ToolCallBlock

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from sessionstore import StoredSession


async def run_shell(command: str) -> str:
    """Run a shell command; what it printed."""
    process = await asyncio.create_subprocess_shell(
        command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    try:
        output, _ = await process.communicate()
    finally:
        if process.returncode is None:
            process.kill()
    return output.decode(errors="replace").strip()


async def read_file(path: str) -> str:
    """A file's text."""
    return await asyncio.to_thread(Path(path).read_text, encoding="utf-8")


TOOLS: dict[str, Callable[..., Awaitable[str]]] = {"run-shell": run_shell, "read-file": read_file}


async def run_turn(session: StoredSession, prompt: str) -> None:
    """One turn: the prompt, then steps of model and tools until the model asks for no more tools."""
    async with session.turn() as turn:
        turn.user(prompt)
        calls: list[ToolCallBlock] | None = None
        while calls is None or calls:
            async with turn.step() as step:
                await step.request()  # what the model is asked is on the disk before money is spent
                blocks = []
                async for chunk in scripted_model.stream(session.derive_messages()):
                    step.chunk(chunk)  # in memory at once, on the disk with the next batch
                    if isinstance(chunk, TextDelta):
                        print(chunk.text, end="", flush=True)
                    elif isinstance(chunk, BlockEnd):
                        blocks.append(chunk.block)
                print(flush=True)
                source = {"kind": "model", "provider": scripted_model.PROVIDER, "model": scripted_model.MODEL}
                step.message({"content": blocks, "source": source})
                calls = [block for block in blocks if isinstance(block, ToolCallBlock)]
                for call in calls:
                    await step.call(call.id, call.name, call.arguments)  # on the disk before the tool runs
                    print(f"[{call.name} {call.arguments}]", flush=True)
                    try:
                        step.result(call.id, await TOOLS[call.name](**json.loads(call.arguments)))
                    except (OSError, KeyError, TypeError, ValueError) as error:
                        step.result(call.id, str(error), error={"name": type(error).__name__, "code": "TOOL_FAILED"})


def show_recovery(session: StoredSession) -> None:
    """Tell the user what a crash cost and what the resume did about it."""
    report = session.recovery
    if report is None or not report.changed:
        return
    print(f"resumed {session.id} after a crash:")
    if report.cut_bytes:
        print(f"  {report.cut_bytes} torn bytes were cut, and kept in {Path(report.quarantine or '').name}")
    for closer in report.closers:
        data = closer.to_dict()["data"]
        code = data.get("error", data.get("reason", {})) if isinstance(data, dict) else {}
        detail = code.get("code", code.get("kind", "")) if isinstance(code, dict) else ""
        print(f"  added {closer.type} {detail}".rstrip())
    print(f"  the history has {len(session.derive_messages())} messages", flush=True)


async def chat(root: Path, resume: str | None, prompts: list[str]) -> None:
    """Open or resume a session and answer the prompts, one turn each."""
    task = asyncio.current_task()
    if task is not None:  # SIGTERM ends like Ctrl-C: the turn is closed, the session flushed, the lock released
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    async with SessionStore(root) as store:
        session = await store.resume(resume) if resume else await store.create(cwd=str(Path.cwd()))
        print(f"session {session.id}", flush=True)
        show_recovery(session)
        for prompt in prompts:
            print(f"> {prompt}", flush=True)
            await run_turn(session, prompt)


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=Path("~/.shopping-agent/sessions"), help="where sessions are kept")
    parser.add_argument("--resume", metavar="SESSION", help="go on with this session")
    parser.add_argument("prompts", nargs="+", metavar="PROMPT")
    options = parser.parse_args()
    try:
        asyncio.run(chat(options.root, options.resume, options.prompts))
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
