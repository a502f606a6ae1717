"""``sessionstore completion``."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

from sessionstore.cli.context import example
from sessionstore.cli.terminal import write_text

__all__ = ["completion"]


@click.command(
    short_help="Print the completion script of a shell.", epilog=example('eval "$(sessionstore completion bash)"')
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, *, shell: str) -> None:
    """Print the script that completes commands, options and ids in a shell."""
    kind = get_completion_class(shell)
    if kind is None:
        raise click.UsageError(f"there is no completion for {shell}")
    script = kind(context.find_root().command, {}, "sessionstore", "_SESSIONSTORE_COMPLETE")
    write_text(script.source())
