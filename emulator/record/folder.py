"""An OUT folder: the result, the step log, and what became of a run that ended early.

    OUT/run.json       the RunResult; results/README.md has it field by field
    OUT/steps.parquet  the step log, and OUT/spool/ while a run goes on: record.steps
    OUT/failure.txt    why a run ended early, in the words of the first rank that failed

One process fills the folder, through a `ResultFolder`. `run.json` and `steps.parquet` appear whole. A killed
run leaves a `run.json` that says it is incomplete, and its spools.
"""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from emulator.config.reader import Source, build, read_json, to_plain
from emulator.errors import SpecError, StorageError, storage_errors
from emulator.files import is_temporary, write_whole
from emulator.record.machine import utc_now
from emulator.record.result import SCHEMA, UNFINISHED, RunResult
from emulator.record.steps import STEPS, Steps, remove_spools, write_steps

RESULT = "run.json"
FAILURE = "failure.txt"

_PROBE = ".feedrate-probe"
_PROBE_BYTES = 65536  # more than one block, so that a full disk shows

_OUTPUT_OF_TOOLS = (
    "fio/[0-9][0-9][0-9]-*/*.fio",
    "fio/[0-9][0-9][0-9]-*/*.json",
    "rados/[0-9][0-9][0-9]-*/*.command",
    "rados/[0-9][0-9][0-9]-*/*.json",
)
"""What baselines keep beside run.json, as patterns below OUT."""


class ResultFolder:
    """An OUT folder, open for adding: after every addition run.json holds all that was measured so far.

    Use it like this, in one process of a run:

        folder = ResultFolder.create(out, new_result("checkpoint", command=..., ...), force=force)
        folder.update(checkpoints=(*folder.result.checkpoints, checkpoint), flags=flags)
        return folder.complete()

    `resume` takes the place of `create` to go on with a run that was cut off. `keep` writes other files.
    """

    def __init__(self, path: Path, result: RunResult) -> None:
        self.path = path
        self.result = result
        """What run.json holds."""

    @classmethod
    def create(cls, path: Path, result: RunResult, *, force: bool) -> ResultFolder:
        """Make the folder, and write `result` as an incomplete one. Raises SpecError, StorageError.

        With `force`, feedrate's own files of an earlier run are removed; files of others stay.
        """
        prepare_out(path, force)
        folder = cls(path, result)
        folder.update(status="incomplete", reason=UNFINISHED)
        return folder

    @classmethod
    def resume(cls, path: Path, result: RunResult, steps: Steps) -> ResultFolder:
        """Go on with `result` and `steps` of a run that was cut off; spools go. Raises StorageError."""
        if len(steps):
            write_steps(path, steps)
        remove_spools(path)
        with storage_errors(f"cannot write to {path}"):
            (path / FAILURE).unlink(missing_ok=True)
        folder = cls(path, result)
        folder.update(status="incomplete", reason=UNFINISHED)
        return folder

    def update(self, **changes: Any) -> RunResult:
        """Change fields of the result and write run.json; the result. Raises StorageError."""
        self.result = replace(self.result, created=utc_now(), **changes)
        write_result(self.path, self.result)
        return self.result

    def complete(self, steps: Steps | None = None) -> RunResult:
        """Write the step log, if there is one, and the complete result; the result. Raises StorageError."""
        if steps is not None:
            write_steps(self.path, steps)
        self.update(status="complete", reason="")
        remove_spools(self.path)
        return self.result

    def keep(self, name: str, content: bytes | str) -> None:
        """Write the file `name`, a path below the folder: what a tool printed. Raises StorageError."""
        file = self.path / name
        with storage_errors(f"cannot create the folder {file.parent}"):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)


def check_out(path: Path, force: bool) -> None:
    """Refuse an OUT that holds files, unless `force`; creates nothing. Raises SpecError, StorageError."""
    with storage_errors(f"cannot look into the folder {path}"):
        used = path.exists() and any(path.iterdir())
    if used and not force:
        raise SpecError(
            f"{path} is not empty", "results are never overwritten: choose another --out, or add --force"
        )


def prepare_out(path: Path, force: bool) -> None:
    """Create the folder OUT, or take an empty one, and try a write there. Before anything is measured.

    This is the one place that decides whether OUT may be taken and what is removed from it: with `force`,
    feedrate's own files of an earlier run; files of others stay. Raises SpecError when OUT holds files and
    `force` is not given; StorageError when it cannot be written.
    """
    check_out(path, force)
    with storage_errors(f"cannot create the folder {path}"):
        path.mkdir(parents=True, exist_ok=True)
    with storage_errors(f"cannot write to {path}"):
        for old in _own_files(path):
            old.unlink(missing_ok=True)
        remove_spools(path)
        try:
            with (path / _PROBE).open("wb") as file:
                file.write(bytes(_PROBE_BYTES))
                file.flush()
                os.fsync(file.fileno())
        finally:
            (path / _PROBE).unlink(missing_ok=True)


def _own_files(path: Path) -> list[Path]:
    """What feedrate itself may have left in an OUT folder, and nothing else."""
    names = [RESULT, STEPS, FAILURE, _PROBE, f".{RESULT}.tmp", f".{STEPS}.tmp"]  # .tmp: of older versions
    left = [file.name for file in path.glob("*.part") if is_temporary(file.name)]
    names += [name for name in left if name.startswith((f"{RESULT}.", f"{STEPS}."))]
    return [path / name for name in names] + [
        file for pattern in _OUTPUT_OF_TOOLS for file in path.glob(pattern)
    ]


def write_result(path: Path, result: RunResult) -> None:
    """Write OUT/run.json whole or not at all. Raises StorageError."""
    text = json.dumps(to_plain(result), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(path / RESULT, text + "\n")


def read_result(path: Path) -> RunResult:
    """The result in OUT/run.json (or in that file itself).

    Raises StorageError when it cannot be read, SpecError when it is no result: corrupt, of a newer feedrate,
    with a field missing, unknown or of the wrong type.
    """
    file = path / RESULT if path.is_dir() or path.suffix != ".json" else path
    if not file.is_file():
        raise StorageError(f"there is no result in {path}", f"a folder with {RESULT} is needed")
    content = read_json(file)
    version = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SpecError(f"{file} is no result of feedrate: it has no schema number", "give an OUT folder")
    if version > SCHEMA:
        raise SpecError(
            f"{file} has schema {version}, made by a newer feedrate; this one reads up to {SCHEMA}",
            "upgrade feedrate",
        )
    try:
        return build(RunResult, content, Source(str(file)))
    except SpecError as error:
        hint = f"{error.hint}; " if error.hint else ""
        raise SpecError(error.what, hint + "it is no result of feedrate, or damaged") from None


def claim_failure(path: Path, line: str) -> bool:
    """Write `line` to OUT/failure.txt; False when another rank has already said why.

    True also when the folder cannot be written: then the caller had better print the line.
    """
    try:
        with (path / FAILURE).open("x", encoding="utf-8") as file:
            file.write(line + "\n")
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def read_failure(path: Path) -> str:
    """Why the run ended early; empty when no rank left a reason."""
    try:
        return (path / FAILURE).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
