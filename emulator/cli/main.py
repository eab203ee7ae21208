"""The command `feedrate`: arguments in, one verb out, errors as one line."""

from __future__ import annotations

import os
import sys

import typer

from emulator import __version__
from emulator.cli.adopt import adopt
from emulator.cli.baseline import baseline
from emulator.cli.calibrate import calibrate
from emulator.cli.checkpoint import checkpoint
from emulator.cli.compare import compare
from emulator.cli.datasize import datasize
from emulator.cli.doctor import doctor
from emulator.cli.efficiency import efficiency
from emulator.cli.export import export
from emulator.cli.fit import fit
from emulator.cli.generate import generate
from emulator.cli.import_ import import_
from emulator.cli.plan import plan
from emulator.cli.report import report
from emulator.cli.run import run
from emulator.cli.simulate import simulate
from emulator.cli.sweep import sweep
from emulator.cli.verify import verify
from emulator.cli.workloads import workloads
from emulator.errors import FeedrateError
from emulator.run.comm import rank_hint

app = typer.Typer(
    name="feedrate",
    help="How many accelerators can this storage feed?",
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


app.command("generate")(generate)
app.command("adopt")(adopt)
app.command("verify")(verify)
app.command("datasize")(datasize)
app.command("workloads")(workloads)
app.command("run")(run)
app.command("sweep")(sweep)
app.command("simulate")(simulate)
app.command("fit")(fit)
app.command("plan")(plan)
app.command("baseline")(baseline)
app.command("checkpoint")(checkpoint)
app.command("efficiency")(efficiency)
app.command("report")(report)
app.command("compare")(compare)
app.command("calibrate")(calibrate)
app.command("import")(import_)
app.command("export")(export)
app.command("doctor")(doctor)


def command() -> int:
    """Run the command line and return its exit status; an error of the user is one line on stderr."""
    try:
        app()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except FeedrateError as error:
        if rank_hint() == 0:  # what is wrong before ranks meet is wrong on every rank: say it once
            print(f"feedrate: error: {error}", file=sys.stderr)
        return error.exit_code
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the reader of our output is gone
        return 1
    except KeyboardInterrupt:
        print("feedrate: interrupted", file=sys.stderr)
        return 130
    return 0
