"""`feedrate sweep --resume OUT`: DIR and the options come from the result in OUT."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from emulator import live
from emulator.errors import SpecError
from emulator.launch.comm import agreed
from emulator.launch.launched import started_by_mpi
from emulator.launch.world import world
from emulator.record.out import read_result
from emulator.record.result import RunResult
from emulator.report.view import words_again


def with_resumed(words: Sequence[str], command: Any) -> list[str]:
    """Return the words of a command line, those of the sweep that it resumes first.

    `command` is the click command of `sweep`. Raises SpecError, StorageError.
    """
    options: dict[str, Any] = {}
    with suppress(Exception):  # the real parser says what is wrong
        options = command.make_context("sweep", list(words[1:]), resilient_parsing=True).params
    if not options.get("resume") or options.get("dataset"):
        return list(words)
    out = Path(options["resume"])
    if not started_by_mpi():
        return _resumed(words, out)
    comm = world()  # OUT may be on rank 0's host alone
    found: list[str] = agreed(comm, lambda: _resumed(words, out) if comm.rank == 0 else [])
    shared: list[str] = comm.bcast(found)
    return shared


def _resumed(words: Sequence[str], out: Path) -> list[str]:
    """Go to the folder where the sweep began, and return its words, then `words`, which say --resume."""
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
        words = [_from_elsewhere(word, out) for word in words]
        os.chdir(began)
        live.detail(f"in {began}, where it began")
    return ["sweep", *before[1:], *_ranks(result, [*before, *words]), *words[1:]]


def _from_elsewhere(word: str, out: Path) -> str:
    """The word with an absolute path in place of OUT."""
    name, equals, value = word.rpartition("=")
    return f"{name}{equals}{out.absolute()}" if value == str(out) else word


def _ranks(result: RunResult, words: Sequence[str]) -> list[str]:
    """-n with the ranks that were started before, where no word and no mpirun says how many."""
    ranks = result.environment.get("ranks_started")
    said = any(word.startswith(("-n", "--ranks")) for word in words)
    return ["-n", str(ranks)] if isinstance(ranks, int) and not said and not started_by_mpi() else []
