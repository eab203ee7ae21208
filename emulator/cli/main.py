"""The command `feedrate`: arguments in, one verb out, errors as one line."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from emulator import __version__
from emulator.errors import DAMAGE, FeedrateError, damaged
from emulator.registry import VERBS, load
from emulator.run.comm import rank_hint
from emulator.text import PrintableStream


class Verbs(TyperGroup):
    """The verbs of the registry. Only the module of the one that was asked for is imported."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        verb = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
        verb.command(cmd_name)(load(VERBS[cmd_name].function))
        return typer.main.get_command(verb)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, verb.summary) for name, verb in VERBS.items()])


app = typer.Typer(
    name="feedrate",
    help="How many accelerators can this storage feed?",
    cls=Verbs,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"feedrate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def command() -> int:
    """Run the command line and return its exit status; an error of the user is one line on stderr."""
    sys.stdout, sys.stderr = PrintableStream(sys.stdout), PrintableStream(sys.stderr)
    try:
        app(prog_name="feedrate")
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except FeedrateError as error:
        if rank_hint() == 0:  # what is wrong before ranks meet is wrong on every rank: say it once
            print(f"feedrate: error: {error}", file=sys.stderr)
        return error.exit_code
    except DAMAGE as error:
        read = [word for word in sys.argv[1:] if "/" in word or Path(word).exists()]
        if "FEEDRATE_TRACEBACK" in os.environ or not read:
            raise  # what was read is feedrate's own
        line = damaged(", ".join(read), error)
        print(f"feedrate: error: {line}", file=sys.stderr)
        return line.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output is gone
        return 1
    except KeyboardInterrupt:
        print("feedrate: interrupted", file=sys.stderr)
        return 130
    return 0
