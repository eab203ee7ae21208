"""`feedrate config`: show the defaults and the files that set them."""

from __future__ import annotations

from typing import Annotated

import typer

from emulator import live
from emulator.cli.defaults import Default, defaults_of, files_for
from emulator.registry import VERBS


def config(
    dataset: Annotated[
        str | None, typer.Argument(metavar="DIR", help="The dataset beside which a feedrate.toml may lie.")
    ] = None,
) -> None:
    """Show the defaults of feedrate.toml, beside DIR and in the home folder, and which of them wins.

    \b
    Examples:
      feedrate config
      feedrate config /mnt/ai/kits19
    """
    from emulator.cli.main import verb_command  # late: main imports this module

    files = files_for(dataset)
    chosen: list[tuple[str, Default]] = [
        (verb, default)
        for verb, _ in VERBS.working()
        for default in defaults_of(verb, verb_command(verb), dataset)
    ]
    if live.for_programs():
        rows = [
            {"command": verb, "option": default.option, "value": default.value, "file": default.source}
            for verb, default in chosen
        ]
        live.answer({"files": {str(path): path.is_file() for path, _ in files}, "defaults": rows})
        return
    for path, _ in reversed(files):
        typer.echo(f"{path}{'' if path.is_file() else '   (not there)'}")
    for verb, default in chosen:
        words = " ".join(default.words) or f"no --{default.option}"
        typer.echo(f"feedrate {verb:10} {words:32} {default.source}")
    if not chosen:
        typer.echo("no defaults: the command line alone decides")
