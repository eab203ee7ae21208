"""Add to the command line: defaults from the home folder's feedrate.toml, and the options of a resumed sweep.

Its keys are options without their dashes; those under [COMMAND] hold for that command alone:

    loader = "direct"

    [sweep]
    max-runs = 12

They are put in front of the typed words, so that the command line wins and results record all of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from emulator import live
from emulator.config.reader import read_toml
from emulator.errors import SpecError
from emulator.launch.comm import agreed
from emulator.launch.launched import started_by_mpi
from emulator.launch.world import world
from emulator.record.out import read_result
from emulator.registry import VERBS
from emulator.report.view import words_again

GetVerb = Callable[[str], Any]
"""Maps the name of a verb to its click command; None when there is none."""


def with_defaults(words: Sequence[str], get_verb: GetVerb) -> list[str]:
    """Return the `words` of a command line with the defaults. Raises SpecError, StorageError."""
    words = list(words)
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in VERBS or words[0] != verb or {"-h", "--help"} & {*words}:
        return words
    if not started_by_mpi():
        return _found(words, verb, get_verb)
    comm = world()  # all ranks read the command line, and their home folders may differ
    found: list[str] = agreed(comm, lambda: _found(words, verb, get_verb) if comm.rank == 0 else [])
    shared: list[str] = comm.bcast(found)
    return shared


def _found(words: list[str], verb: str, get_verb: GetVerb) -> list[str]:
    command = get_verb(verb)
    if verb == "sweep":
        given = _typed(command, words[1:])
        if given.get("resume") and not given.get("dataset"):
            words = resumed(words, Path(given["resume"]))
    more = default_words(verb, command)
    return [verb, *more, *words[1:]]


def _typed(command: Any, words: Sequence[str]) -> dict[str, Any]:
    """Return what was typed: option or argument -> value. Errors are left to the real parser."""
    with suppress(Exception), command.make_context(command.name, list(words), resilient_parsing=True) as ctx:
        return dict(ctx.params)
    return {}


def default_words(verb: str, command: Any) -> list[str]:
    """Return the defaults of a verb as words of a command line. Raises SpecError, StorageError."""
    path = Path.home() / "feedrate.toml"
    if not path.is_file():
        return []
    table, _ = read_toml(path)
    flags = {
        name[2:]: bool(getattr(parameter, "is_flag", False))
        for parameter in command.params
        for name in parameter.opts
        if name.startswith("--") and name not in ("--storage-timeout", "--resume", "--help")
    }
    general = {name: value for name, value in table.items() if not isinstance(value, dict)}
    for name in table.keys() - general.keys():
        if name not in VERBS:
            raise SpecError(f"{path}: [{name}] is no command", _nearest(name, VERBS))
    own = table.get(verb, {})
    words: list[str] = []
    for name, value in {**general, **own}.items():
        option = name.replace("_", "-")
        if option in flags:
            words += _words(option, value, flags[option], f"{path}: {name}")
        elif name in own:
            raise SpecError(f"{path}: {verb} has no option --{option}", _nearest(option, flags))
    if words:
        live.detail(f"defaults from {path}: {' '.join(words)}")
    return words


def _words(option: str, value: Any, flag: bool, where: str) -> list[str]:
    """Return a default as words. Raises SpecError unless the option can have this value."""
    if flag:
        if not isinstance(value, bool):
            raise SpecError(f"{where} is not true or false")
        return [f"--{option}"] if value else []
    items = value if isinstance(value, list) else [value]
    if not all(isinstance(item, str | int | float) for item in items):
        raise SpecError(f"{where} is not text, a number or a list of them")
    return [f"--{option}={item}" for item in items]


def _nearest(name: str, known: Any) -> str:
    close = get_close_matches(name, list(known), 1)
    return f"did you mean {close[0]}?" if close else "see feedrate --help"


def resumed(words: Sequence[str], out: Path) -> list[str]:
    """Return the words of the sweep in `out`, then `words`, which say --resume; go to the folder it began in.

    Raises SpecError, StorageError.
    """
    result = read_result(out)
    if result.kind != "sweep":
        raise SpecError(f"{out} holds a {result.kind}, not a sweep", "give the OUT of a sweep to --resume")
    before = words_again(result)
    if not before or any("***" in word for word in before):
        raise SpecError(
            f"the result in {out} does not have the whole command (keys are not kept)",
            "give DIR and the options again, with --resume",
        )
    began = result.environment.get("folder")
    if isinstance(began, str) and Path(began).is_dir() and Path(began) != Path.cwd():
        words = [str(out.absolute()) if word == str(out) else word for word in words]
        words = [f"--resume={out.absolute()}" if word.startswith("--resume=") else word for word in words]
        os.chdir(began)
        live.detail(f"in {began}, where it began")
    ranks = result.environment.get("ranks_started")
    many = not any(word.startswith(("-n", "--ranks")) for word in (*before, *words))
    if isinstance(ranks, int) and many and not started_by_mpi():
        before += ["-n", str(ranks)]
    return [words[0], *before[1:], *words[1:]]
