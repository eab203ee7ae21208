"""The command `feedrate`: it parses arguments, calls one verb, and prints errors as one line."""

from __future__ import annotations

import difflib
import inspect
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import MISSING, dataclass, fields, is_dataclass
from functools import wraps
from pathlib import Path
from typing import Annotated, Any, get_args, get_type_hints

import typer
from typer.core import TyperCommand, TyperGroup

from emulator import __version__, live, notes
from emulator.cli.resume import with_resumed
from emulator.errors import EXIT_STATUS, FeedrateError, SpecError, storage_error, unexpected
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.supervise import interruptible
from emulator.launch.watch import OPTION
from emulator.registry import VERBS
from emulator.text import PrintableStream
from emulator.units import parse_seconds, show_seconds

HELP = {"help_option_names": ["-h", "--help"], "max_content_width": 100}
PANELS = {
    "Answer": ("ask", "plan", "report", "compare", "published"),
    "Measure": ("run", "sweep", "baseline", "checkpoint", "calibrate"),
    "Data": ("generate", "verify", "adopt", "datasize", "workloads"),
    "Your job, MLPerf": ("record", "import", "export", "efficiency"),
}
"""Commands by task, in the order of the help."""
METAVARS = {int: "N", float: "X", Path: "PATH", str: "TEXT", bool: ""}
"""Type of an option -> its value in the help, where the option does not say."""
COMPLETING = "_FEEDRATE_COMPLETE" in os.environ


def _set_timeout(text: str) -> str:
    """Tell the alarm --storage-timeout. Raises SpecError."""
    seconds = parse_seconds(text)
    if not seconds > 0:
        raise SpecError(f"{OPTION} {text!r} is not above zero", "write it like 30s or 2min")
    if page := notes.page():
        page.head.timeout = seconds
    return text


@dataclass(frozen=True, slots=True, kw_only=True)
class OfEveryVerb:
    """The options that every verb has."""

    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print the answer as a line of JSON on stdout, all else on stderr.",
            rich_help_panel="Output",
        ),
    ] = False
    live: Annotated[
        str,
        typer.Option(
            metavar="HOW",
            help="Progress: auto, lines, json (an object a second on stdout), json:FILE or off.",
            rich_help_panel="Output",
        ),
    ] = "auto"
    quiet: Annotated[
        bool,
        typer.Option("--quiet", "-q", help="Print only the answer and errors.", rich_help_panel="Output"),
    ] = False
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Also print what is started.", rich_help_panel="Output")
    ] = False
    storage_timeout: Annotated[
        str,
        typer.Option(
            OPTION,
            metavar="TIME",
            is_eager=True,  # before a path is looked at, which may hang
            callback=_set_timeout,
            help="Give up when a call into the storage has not returned for this long.",
            rich_help_panel="Output",
        ),
    ] = show_seconds(notes.DEFAULT_TIMEOUT)

    def apply(self) -> None:
        """Choose how this process prints. Raises SpecError, StorageError."""
        live.speak(
            live=self.live,
            answer_json=self.as_json,
            quiet=self.quiet,
            verbose=self.verbose,
            rank=rank_hint() if started_by_mpi() else None,
            terminal=_terminal,
        )


def _with_groups(verb: Callable[..., None]) -> Callable[..., None]:
    """Return `verb` with options in place of its parameters that are dataclasses, and those of every verb."""
    hints = get_type_hints(verb, include_extras=True)
    groups = {name: kind for name, kind in hints.items() if is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for name, parameter in inspect.signature(verb).parameters.items():
        if name in groups:
            parameters += _parameters(groups[name])
        else:
            parameters.append(parameter.replace(annotation=hints[name], kind=parameter.KEYWORD_ONLY))
    parameters += _parameters(OfEveryVerb)

    @wraps(verb)
    def filled(**given: Any) -> None:
        _taken(OfEveryVerb, given).apply()
        for name, group in groups.items():
            given[name] = _taken(group, given)
        verb(**given)

    filled.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]  # Typer reads both
    filled.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return filled


def _parameters(group: Any) -> Iterator[inspect.Parameter]:
    """Yield the fields of a group of options as parameters."""
    kinds = get_type_hints(group, include_extras=True)
    for field in fields(group):
        default = inspect.Parameter.empty if field.default is MISSING else field.default
        kind = inspect.Parameter.KEYWORD_ONLY
        yield inspect.Parameter(field.name, kind, default=default, annotation=kinds[field.name])


def _taken(group: Any, given: dict[str, Any]) -> Any:
    """Return a group made of its options, which are taken out of `given`."""
    return group(**{field.name: given.pop(field.name) for field in fields(group)})


class VerbCommand(TyperCommand):
    """A verb with the options of every verb."""

    allow_extra_args = True  # parse_args says what to do with them

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        super().parse_args(ctx, args)
        if ctx.args and not ctx.resilient_parsing:
            name, argument = self.name or "", ctx.args[0]
            raise SpecError(f"feedrate {name} takes no argument {argument}", f"see feedrate {name} -h")
        return []

    def invoke(self, ctx: Any) -> Any:
        with interruptible():  # the verb may have files to remove; before it and after it there is nothing
            return super().invoke(ctx)


def _terminal() -> live.View:
    from emulator.report.live import Terminal  # here: it imports rich

    return Terminal()


class Verbs(TyperGroup):
    """The verbs of `registry.VERBS`, each imported when it is asked for."""

    def list_commands(self, ctx: Any) -> list[str]:
        known = [name for names in PANELS.values() for name in names if name in VERBS]
        return [*known, *(name for name in VERBS if name not in known)]

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        close = difflib.get_close_matches(args[0], VERBS, n=1)
        if args[0] not in VERBS and close and not ctx.resilient_parsing:
            raise SpecError(f"there is no command {args[0]!r}", f"did you mean {close[0]!r}?")
        return super().resolve_command(ctx, args)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        try:
            verb = _with_groups(VERBS.load(cmd_name))
        except FeedrateError:
            if ctx is None or ctx.invoked_subcommand or cmd_name in sys.argv:
                raise
            return None  # the help leaves it out; doctor says why
        panel = next((panel for panel, names in PANELS.items() if cmd_name in names), "More")
        own = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        own.command(cmd_name, cls=VerbCommand, context_settings=HELP, rich_help_panel=panel)(verb)
        command = typer.main.get_command(own)
        hints = get_type_hints(verb)
        for parameter in command.params:
            if parameter.metavar is None and parameter.param_type_name == "option":
                parameter.metavar = _metavar(hints.get(parameter.name))
        return command


def _metavar(hint: Any) -> str | None:
    """Return what the help shows for a value of this type; None where typer knows better."""
    if hint in METAVARS:
        return METAVARS[hint]
    # Within `list[str] | None` it is str.
    return next(filter(None, map(_metavar, get_args(hint))), None)


UsageError: Any = typer.BadParameter.__base__
"""The error of an option parser. Typer exports only a subclass of it."""

app = typer.Typer(
    name="feedrate",
    help="How many accelerators can this storage feed? Begin with ask.",
    cls=Verbs,
    no_args_is_help=True,
    context_settings=HELP,
    pretty_exceptions_enable=False,
    epilog="\n\n".join(["Exit status:", *(f"{code:>3}  {meaning}" for code, meaning in EXIT_STATUS.items())]),
)


def _version(show: bool) -> None:
    if show:
        typer.echo(f"feedrate {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: bool = typer.Option(
        False, "--version", "-V", callback=_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass


def verb_command(name: str) -> Any:
    """The click command of a verb; None when there is no such verb. Raises MissingError."""
    group: Any = typer.main.get_command(app)
    return group.get_command(None, name)


def _usage(error: Any) -> int:
    """Print what is wrong with the command line, or the help where it is empty; return the exit status."""
    if not sys.argv[1:]:
        error.show()
    elif rank_hint() == 0:
        verb = getattr(error.ctx, "command_path", "feedrate")
        print(f"feedrate: error: {error.format_message().rstrip('.')}; see {verb} -h", file=sys.stderr)
    return int(error.exit_code)


def command() -> int:
    """Run the command line and return its exit status. An error is one line on stderr."""
    if COMPLETING:
        return _complete()
    sys.stdout, sys.stderr = PrintableStream(sys.stdout), PrintableStream(sys.stderr)
    try:
        if sys.argv[1:2] == ["sweep"]:
            sys.argv[1:] = with_resumed(sys.argv[1:], verb_command("sweep"))
        return app(prog_name="feedrate", standalone_mode=False) or 0
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # stdout's reader is gone
        return 1
    except KeyboardInterrupt:
        print("feedrate: interrupted", file=sys.stderr)
        return 130
    except Exception as error:  # noqa: BLE001
        return _say_error(error)


def _say_error(error: Exception) -> int:
    """Print an error as one line, and return the exit status."""
    if isinstance(error, UsageError):
        return _usage(error)
    if isinstance(error, FeedrateError):
        if rank_hint() == 0:  # every rank has the same error: print it once
            print(f"feedrate: error: {error}", file=sys.stderr)
        return error.exit_code
    if isinstance(error, OSError):  # from a small call that has no handler of its own
        refused: FeedrateError = storage_error(error, "cannot go on")
    else:  # a bug
        refused = FeedrateError(unexpected(error))
    print(f"feedrate: error: {refused}", file=sys.stderr)
    return refused.exit_code


def _complete() -> int:
    """Print completions for the shell."""
    with open(os.devnull, "w") as sys.stderr:  # noqa: PTH123  nothing may reach the prompt
        try:
            return app(prog_name="feedrate", standalone_mode=False) or 0
        except (Exception, SystemExit):  # noqa: BLE001  no completion is better than an error
            return 0
