"""Add to the command line: defaults from feedrate.toml, and the options of a resumed sweep.

A feedrate.toml is beside the dataset (in the folder that holds DIR) or in the home folder. Its keys are
options without their dashes; those under [COMMAND] hold for that command alone:

    loader = "direct"

    [sweep]
    max-runs = 12

They are put in front of the typed words, so that the command line wins and results record all of them. A
file beside a dataset may belong to anybody, so it may set how to measure, but nothing that writes or removes
files.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from emulator import live
from emulator.cli.entry import TOGETHER
from emulator.config.reader import read_toml
from emulator.errors import SpecError
from emulator.files import SCRATCH_VARIABLE
from emulator.launch.launched import started_by_mpi
from emulator.record.out import read_result
from emulator.registry import VERBS
from emulator.report.view import words_again
from emulator.run.comm import agreed
from emulator.run.world import world

FILE = "feedrate.toml"
BESIDE = frozenset(
    (
        "batch", "budget", "cache", "counts", "depths", "epochs", "jobs", "label", "loader",
        "max-runs", "mismatched-dataset", "payload", "placement", "precision", "quick", "ranks",
        "recipe", "runtime", "set", "size", "steps", "storage", "suite", "threads",
        "verify-reads", "workload",
    )
)  # fmt: skip
"""Options that a file beside a dataset may set."""
GetVerb = Callable[[str], Any]
"""Maps the name of a verb to its click command; None when there is none."""


@dataclass(frozen=True, slots=True)
class Default:
    """One option of a verb and the file that sets it."""

    option: str
    value: Any
    source: str
    """Path of the file."""

    @property
    def words(self) -> list[str]:
        """The words to put on the command line."""
        values = self.value if isinstance(self.value, list) else [self.value]
        if self.value is True:
            return [f"--{self.option}"]
        return [] if self.value is False else [f"--{self.option}={value}" for value in values]


def with_defaults(words: Sequence[str], get_verb: GetVerb) -> list[str]:
    """Return the `words` of a command line with the defaults. Raises SpecError, StorageError."""
    words = list(words)
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in VERBS or words[0] != verb or SCRATCH_VARIABLE in os.environ or _asks_for_help(words):
        return words  # a rank of feedrate's own launcher got them from it
    if not started_by_mpi() or verb in TOGETHER:
        return _found(words, verb, get_verb)
    comm = world()  # all ranks read the command line, and their home folders may differ
    found: list[str] = agreed(comm, lambda: _found(words, verb, get_verb) if comm.rank == 0 else [])
    shared: list[str] = comm.bcast(found)
    return shared


def _asks_for_help(words: Sequence[str]) -> bool:
    return "-h" in words or "--help" in words or "_FEEDRATE_COMPLETE" in os.environ


def _found(words: list[str], verb: str, get_verb: GetVerb) -> list[str]:
    command = get_verb(verb)
    given = typed(command, words[1:])
    if verb == "sweep" and given.get("resume") and not given.get("dataset"):
        words = resumed(words, Path(given["resume"]))
        given = typed(command, words[1:])
    place = given.get("dataset") or given.get("folder")
    defaults = defaults_of(verb, command, str(place) if place else None)
    if not defaults:
        return words
    more = [word for default in defaults for word in default.words]
    for source in dict.fromkeys(default.source for default in defaults):
        live.detail(f"defaults from {source}")
    return [verb, *more, *words[1:]]


def typed(command: Any, words: Sequence[str]) -> dict[str, Any]:
    """Return what was typed: option or argument -> value. Errors are left to the real parser."""
    with suppress(Exception), command.make_context(command.name, list(words), resilient_parsing=True) as ctx:
        return dict(ctx.params)
    return {}


def files_for(place: str | None) -> list[tuple[Path, bool]]:
    """Return the files that may hold defaults, the stronger last; True marks the one beside the dataset."""
    found = [(Path.home() / FILE, False)]
    if place is not None and "://" not in place:
        beside = Path(place).absolute().parent / FILE
        if beside != found[0][0]:
            found.append((beside, True))
    return found


def defaults_of(verb: str, command: Any, place: str | None) -> list[Default]:
    """Return the defaults of a verb; later files win. Raises SpecError, StorageError."""
    known = options_of(command)
    chosen: dict[str, Default] = {}
    for path, beside in files_for(place):
        if not path.is_file():
            continue
        table, _ = read_toml(path)
        general = {name: value for name, value in table.items() if not isinstance(value, dict)}
        own = table.get(verb, {})
        for name in table.keys() - general.keys():
            if name not in VERBS:
                raise SpecError(f"{path}: [{name}] is no command", _nearest(name, VERBS))
        for name, value in {**general, **own}.items():
            option = name.replace("_", "-")
            if option not in known:
                if name in own:
                    raise SpecError(f"{path}: {verb} has no option --{option}", _nearest(option, known))
                continue
            if beside and option not in BESIDE:
                raise SpecError(
                    f"{path} may not say --{option}: a file beside a dataset only sets how to measure",
                    f"put it into {Path.home() / FILE}",
                )
            _require_plain(value, known[option], f"{path}: {name}")
            chosen[option] = Default(option, value, str(path))
    return list(chosen.values())


def _require_plain(value: Any, flag: bool, where: str) -> None:
    """Raise SpecError unless an option can have this value; a `flag` is true or false."""
    items = value if isinstance(value, list) else [value]
    if flag and not isinstance(value, bool):
        raise SpecError(f"{where} is not true or false")
    if not all(isinstance(item, str | int | float) for item in items):
        raise SpecError(f"{where} is not text, a number or a list of them")


def options_of(command: Any) -> dict[str, bool]:
    """Return the long options of a verb, without dashes; True marks those that take no value."""
    found = {}
    for parameter in command.params:
        for name in parameter.opts:
            if name.startswith("--") and name not in ("--storage-timeout", "--resume", "--help"):
                found[name[2:]] = bool(getattr(parameter, "is_flag", False))
    return found


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
