"""Words that nobody typed: defaults from feedrate.toml, and the options of a sweep that is resumed.

A feedrate.toml lies beside the dataset (in the folder that holds DIR) or in the home folder. Its keys are
options without their dashes; those of a [COMMAND] are of that command alone:

    loader = "direct"

    [sweep]
    max-runs = 12

They become words in front of what was typed, so that the command line wins, and results keep all of them. A
file beside a dataset may be anybody's: it may say how is measured, and nothing that writes or removes files.
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
from emulator.config.reader import read_toml
from emulator.errors import SpecError
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.record.out import read_result
from emulator.registry import VERBS
from emulator.report.view import words_again
from emulator.run.comm import agreed, world

FILE = "feedrate.toml"
BESIDE = frozenset(
    (
        *("batch", "budget", "cache", "counts", "depths", "engine", "epochs", "jobs", "label", "loader"),
        *(
            "max-runs",
            "mismatched-dataset",
            "payload",
            "placement",
            "precision",
            "quick",
            "ranks",
            "recipe",
            "repeats",
        ),
        *("runtime", "set", "size", "steps", "storage", "suite", "threads", "verify-reads", "workload"),
    )
)
"""What a file beside a dataset may say."""
TOGETHER = ("run", "sweep")
"""Verbs whose command line rank 0 alone reads."""
GetVerb = Callable[[str], Any]
"""Name of a verb -> its click command; None when there is none."""


@dataclass(frozen=True, slots=True)
class Default:
    """One option of a verb, and where its value is from."""

    option: str
    value: Any
    source: str
    """The file."""

    @property
    def words(self) -> list[str]:
        """How it is typed."""
        values = self.value if isinstance(self.value, list) else [self.value]
        if self.value is True:
            return [f"--{self.option}"]
        return [] if self.value is False else [f"--{self.option}={value}" for value in values]


def with_defaults(words: Sequence[str], get_verb: GetVerb) -> list[str]:
    """`words` of a command line with what nobody typed. Raises SpecError, StorageError."""
    words = list(words)
    verb = next((word for word in words if not word.startswith("-")), "")
    if verb not in VERBS or words[0] != verb or "FEEDRATE_SCRATCH" in os.environ or _asks_for_help(words):
        return words  # a rank of feedrate's own launcher has all the words already
    alone = not started_by_mpi()
    if not alone and verb in TOGETHER and rank_hint():
        return words
    if alone or verb in TOGETHER:
        return _found(words, verb, get_verb)
    comm = world()  # all ranks read the command line: they agree on one, since home folders may differ
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
    """Option or argument -> its value as far as it was typed. What is wrong the real parser will say."""
    with suppress(Exception), command.make_context(command.name, list(words), resilient_parsing=True) as ctx:
        return dict(ctx.params)
    return {}


def files_for(place: str | None) -> list[tuple[Path, bool]]:
    """The files that may hold defaults, the stronger last, and whether one lies beside the dataset."""
    found = [(Path.home() / FILE, False)]
    if place is not None and "://" not in place:
        beside = Path(place).absolute().parent / FILE
        if beside != found[0][0]:
            found.append((beside, True))
    return found


def defaults_of(verb: str, command: Any, place: str | None) -> list[Default]:
    """What the files say of this verb, a later one over an earlier one. Raises SpecError, StorageError."""
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
                    f"{path} may not say --{option}: a file beside a dataset says only how is measured",
                    f"put it into {Path.home() / FILE}",
                )
            plain = isinstance(value, str | int | float) or (
                isinstance(value, list) and all(isinstance(item, str | int | float) for item in value)
            )
            if not plain or (known[option] and not isinstance(value, bool)):
                wanted = "true or false" if known[option] else "text, a number or a list of them"
                raise SpecError(f"{path}: {name} is not {wanted}")
            chosen[option] = Default(option, value, str(path))
    return list(chosen.values())


def options_of(command: Any) -> dict[str, bool]:
    """Long options of a verb without their dashes -> whether they take no value."""
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
    """The words of the sweep in `out` before those of `words`, which say --resume; in the folder it began in.

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
