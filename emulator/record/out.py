"""An OUT folder: the result, the step log, and the reason if a run ended early.

    OUT/run.json       the RunResult; results/README.md has it field by field
    OUT/steps*.parquet the step log, a part for each host, and OUT/spool/ while a run goes on: record.steps
    OUT/failure.txt    why a run ended early, in the words of the first rank that failed

One process fills the folder, through a `ResultFolder`, and holds a lock in it while it does. `run.json` and
`steps.parquet` appear whole. A killed run leaves a `run.json` that says it is incomplete, and its spools.

Own before you delete: only what an intact run.json names, or what has a head of feedrate's own, is removed,
and never through a link. Anything else at such a name is not feedrate's: then --force and --resume refuse.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection
from contextlib import suppress
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from emulator.config.reader import Source, build, read_json, to_plain
from emulator.errors import FeedrateError, SpecError, StorageError, storage_errors
from emulator.files import (
    BLOCK,
    Closing,
    Lock,
    Owner,
    folder_of,
    in_use,
    is_plain,
    is_special,
    open_plain,
    require_writable,
    write_whole,
    written_by,
)
from emulator.record.machine import utc_now
from emulator.record.result import SCHEMA, UNFINISHED, RunResult
from emulator.record.rows import has_columns
from emulator.record.steps import (
    SPOOL,
    STEP,
    Steps,
    is_part,
    is_spool,
    next_part,
    parts_of,
    remove_spools,
    spools_of,
    write_part,
    write_steps,
)

RESULT = "run.json"
FAILURE = "failure.txt"
_FAILED = "feedrate: error: "
"""Begin of a failure.txt of feedrate's."""

LOCK = ".feedrate-lock"
"""Name of the lock file, whose content names the process that fills the folder."""

_OUTPUT_OF_TOOLS = (
    "fio/[0-9][0-9][0-9]-*/*.fio",
    "fio/[0-9][0-9][0-9]-*/*.json",
    "rados/[0-9][0-9][0-9]-*/*.command",
    "rados/[0-9][0-9][0-9]-*/*.json",
)
"""Patterns below OUT of the files that baselines keep. Each .json is named in run.json."""
_FOLDERS = (SPOOL, "fio", "rados")


class ResultFolder(Closing):
    """An OUT folder, open for adding: after every addition run.json holds all that was measured so far.

    One process of a run opens it; ranks do so with `launch.comm.entered`:

        with ResultFolder.create(out, new_result("checkpoint", command=..., ...), force=force) as folder:
            folder.update(checkpoints=(*folder.result.checkpoints, checkpoint), flags=flags)
            return folder.complete()

    `resume` takes the place of `create` to go on with a run that was cut off. `keep` writes other files. A
    body that ends before `complete` leaves an incomplete result, and lets others in.
    """

    def __init__(self, path: Path, result: RunResult, lock: Lock) -> None:
        self.path = path
        self._lock = lock
        self.result = result
        """Content of run.json."""

    @classmethod
    def create(cls, path: Path, result: RunResult, *, force: bool) -> ResultFolder:
        """Make the folder, and write `result` as an incomplete one. Raises SpecError, StorageError.

        With `force`, feedrate's own files of an earlier run are removed; files of others stay.
        """
        check_out(path, force)
        made = not path.exists()
        with storage_errors(f"cannot create the folder {path}"):
            path.mkdir(parents=True, exist_ok=True)
        lock = _locked(path)
        folder = cls(path, result, lock)
        try:
            _remove(path, _left_by(path, lock.before))
            _remove(path, check_out(path, force, held=True))  # another process may have filled it since
            folder.update(status="incomplete", reason=UNFINISHED)
        except BaseException:
            folder.close()
            if made:
                with suppress(OSError):
                    path.rmdir()
            raise
        return folder

    @classmethod
    def resume(cls, path: Path, result: RunResult) -> ResultFolder:
        """Go on with `result` of a run that was cut off; spools become a part of the step log.

        Raises SpecError when another process resumes it, or has resumed it; StorageError.
        """
        folder = cls(path, result, _locked(path))
        try:
            if len(read_result(path).points) != len(result.points):
                raise SpecError(f"another process has gone on with {path}", "resume it again")
            _own_files(path)
            _remove(path, _left_by(path, folder._lock.before))
            write_part(path, next_part(path), spools_of(path), points=len(result.points))
            remove_spools(path)
            with storage_errors(f"cannot write to {path}"):
                (path / FAILURE).unlink(missing_ok=True)
            folder.update(status="incomplete", reason=UNFINISHED)
        except BaseException:
            folder.close()
            raise
        return folder

    def close(self) -> None:
        """Release the lock. A second call, or one after `complete`, does nothing. Never raises."""
        if self._lock.held:
            with suppress(StorageError):
                # Without the lock, no one can tell whose they are.
                _remove(self.path, _left_by(self.path, Owner.me()))
            self._lock.release(remove=True)

    def update(self, **changes: Any) -> RunResult:
        """Change fields of the result, write run.json, and return the result. Raises StorageError."""
        self.result = replace(self.result, created=utc_now(), **changes)
        write_result(self.path, self.result)
        return self.result

    def complete(self, steps: Steps | None = None) -> RunResult:
        """Write the step log, if any, and the complete result; return the result. Raises StorageError."""
        if steps is not None:
            write_steps(self.path, steps)
        self.update(status="complete", reason="")
        remove_spools(self.path)
        self._lock.release(remove=True)
        return self.result

    def keep(self, name: str, content: bytes | str) -> None:
        """Write the file `name`, a path below the folder, with the output of a tool. Raises StorageError."""
        file = self.path / name
        with storage_errors(f"cannot create the folder {file.parent}"):
            file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, content)


def _locked(path: Path) -> Lock:
    """Return the lock on OUT. Raises SpecError if another process holds it, StorageError."""
    with storage_errors(f"cannot write to {path}"):
        try:
            return Lock(path / LOCK)
        except BlockingIOError as error:
            raise SpecError(f"{path} is in use: {error.strerror}", "choose another --out") from None


def check_out(
    path: Path, force: bool, held: bool = False, hint: str = "choose another --out, or add --force"
) -> list[Path]:
    """Refuse an OUT that holds files; with `force` return those of an earlier run, which are ours to replace.

    Changes nothing. One that another process fills is refused, too; `held`: this process has its lock.
    Raises SpecError, also when other files have names that feedrate needs; StorageError.
    """
    require_apart(path)
    lock = path / LOCK  # of a process alive or dead
    with storage_errors(f"cannot look into the folder {path}"):
        names = {entry.name for entry in path.iterdir()} if path.exists() else set()
        holder = in_use(lock) if names and not held else ""
        before = Owner.named_in(lock) if is_plain(path, lock) else None
        others = names - {LOCK, *(file.name for file in _left_by(path, before))}
    if holder:
        raise SpecError(f"{path} is in use: {holder}", "choose another --out")
    if others and not force:
        raise SpecError(f"{path} is not empty", f"results are never overwritten: {hint}")
    return _own_files(path) if others else []


def require_apart(path: Path, hint: str = "choose another --out") -> None:
    """Refuse to write into a dataset's folder: verify would report what is there. Raises SpecError."""
    if folder := folder_of("dataset", path):
        raise SpecError(f"{path} lies in the dataset {folder}", hint)


def require_new_place(dataset: Path) -> None:
    """Refuse to make a dataset in a result, or in another dataset. Raises SpecError."""
    parent = Path(os.path.realpath(dataset)).parent
    if folder := folder_of("result", dataset) or folder_of("dataset", parent):
        raise SpecError(f"the dataset {dataset} lies in {folder}", "choose another folder")


def require_output(path: Path) -> Path:
    """Return where to write a file that the user named: a link is followed.

    Raises SpecError if it lies in a dataset, or is a result's own; StorageError if it cannot be written.
    """
    target = path if is_special(path) else Path(os.path.realpath(path))
    require_apart(target, "choose another name")
    if folder := folder_of("result", target.parent):
        own = target.relative_to(folder).parts[0]
        if own in (RESULT, FAILURE, LOCK, *_FOLDERS) or is_part(own):
            raise SpecError(f"{path} belongs to the result {folder}", "choose another name")
    require_writable(target)
    return target


def write_output(path: Path, content: bytes | str) -> None:
    """Write a file that the user named. Raises as `require_output` does."""
    write_whole(require_output(path), content)


def _remove(path: Path, files: Collection[Path]) -> None:
    """Remove these files of OUT, and the folder of spools if that leaves it empty. Raises StorageError."""
    with storage_errors(f"cannot write to {path}"):
        for file in files:
            file.unlink(missing_ok=True)
    with suppress(OSError):
        (path / SPOOL).rmdir()


def _left_by(path: Path, before: Owner | None) -> list[Path]:
    """Return the temporary files in OUT of the process `before`, which was killed. Raises StorageError."""
    if before is None:
        return []
    left = []
    with storage_errors(f"cannot look into the folder {path}"):
        for file in path.iterdir():
            name, *writer = written_by(file.name) or ("",)
            ours = name == RESULT or is_part(name)
            if ours and writer == [before.host[:32], before.pid] and is_plain(path, file):
                left.append(file)
    return left


def _own_files(path: Path) -> list[Path]:
    """Return the files in OUT that its run.json says are feedrate's.

    Raises SpecError if it has no intact run.json, or if files of others have such names.
    """
    try:
        result = read_result(path)
    except (SpecError, StorageError) as error:
        raise SpecError(
            f"{path} holds no intact result of feedrate, and --force replaces nothing else ({error.what})",
            "choose another --out, or remove the folder yourself",
        ) from None
    named = {path / name for corner in result.baseline for name in corner.files}
    named |= {file.with_suffix(end) for file in named for end in (".fio", ".command")}
    files = [path / RESULT, path / FAILURE, *parts_of(path), *(path / SPOOL).glob("*.steps")]
    files += chain.from_iterable(map(path.glob, _OUTPUT_OF_TOOLS))
    files = [file for file in files if os.path.lexists(file)]
    others = [file for file in files if not _looks_ours(path, file, named)]
    if others:
        names = ", ".join(str(file.relative_to(path)) for file in others[:5])
        raise SpecError(
            f"{path} holds files that feedrate did not write: {names}",
            "move them away, or choose another --out",
        )
    return files


def _looks_ours(path: Path, file: Path, named: Collection[Path]) -> bool:
    """Return True if feedrate wrote the file at a name of its own in OUT; `named`: those of tools.

    Raises StorageError.
    """
    with storage_errors("cannot read a file", file):
        if not is_plain(path, file):
            return False
        if file.suffix == ".steps":
            return is_spool(path, file)
        if is_part(file.name):
            return has_columns(file, STEP)
        if file == path / FAILURE:
            return _is_failure(path)
        return file == path / RESULT or file in named


def _is_failure(path: Path) -> bool:
    """Return True if OUT has a failure.txt that `claim_failure` wrote. Raises OSError."""
    file = path / FAILURE
    if not is_plain(path, file):
        return False
    with file.open("rb") as opened:
        return opened.read(len(_FAILED)) == _FAILED.encode()


def write_result(path: Path, result: RunResult) -> None:
    """Write OUT/run.json atomically. Raises StorageError."""
    text = json.dumps(to_plain(result, named=True), indent=1, ensure_ascii=False, allow_nan=False)
    write_whole(path / RESULT, text + "\n")


def read_result(path: Path) -> RunResult:
    """Return the result in OUT/run.json, or in that file if `path` is the file.

    Raises StorageError when it cannot be read, SpecError when it is no result: corrupt, of a newer feedrate,
    with a field missing, unknown or of the wrong type.
    """
    file = path / RESULT if path.is_dir() or path.suffix != ".json" else path
    if not file.is_file():
        raise StorageError(f"there is no result in {path}", f"a folder with {RESULT} is needed")
    content = read_json(file)
    _require_schema(file, content.get("schema") if isinstance(content, dict) else None)
    try:
        return build(RunResult, content, Source(str(file)))
    except SpecError as error:
        hint = f"{error.hint}; " if error.hint else ""
        raise SpecError(error.what, hint + "it is no result of feedrate, or damaged") from None


def _require_schema(file: Path, version: object) -> None:
    """Raise SpecError unless the schema number of the result `file` is one that this feedrate reads."""
    if type(version) is not int or version < 1:
        raise SpecError(f"{file} is no result of feedrate: it has no schema number", "give an OUT folder")
    if version > SCHEMA:
        raise SpecError(
            f"{file} has schema {version}, made by a newer feedrate; this one reads up to {SCHEMA}",
            "upgrade feedrate",
        )


def claim_failure(path: Path, line: str) -> bool:
    """Write `line` to OUT/failure.txt; False when another rank has already said why.

    True also when there is no unfinished result to say it of (an earlier one that is complete stays as it
    is), or when the folder cannot be written: then the caller had better print the line.
    """
    try:
        if not _is_unfinished(path):
            return True
        with (path / FAILURE).open("x", encoding="utf-8") as file:
            file.write(f"{_FAILED}{line}\n")
    except FileExistsError:
        return False
    except OSError:
        return True
    return True


def replace_failure(path: Path, line: str) -> None:
    """Write `line` to OUT/failure.txt, where a rank has said less: the launcher knows why ranks died.

    Does nothing where there is no unfinished result, or where it cannot be written.
    """
    with suppress(OSError):
        if _is_unfinished(path) and _is_failure(path):
            (path / FAILURE).unlink()
    claim_failure(path, line)


def _is_unfinished(path: Path) -> bool:
    try:
        return read_result(path).status == "incomplete"
    except FeedrateError:
        return False


def read_failure(path: Path) -> str:
    """Return the reason why the run ended early; empty if no rank left one."""
    try:
        with open_plain(path / FAILURE) as file:
            text = file.read(BLOCK).decode(errors="replace")
    except OSError:
        return ""
    return text.removeprefix(_FAILED).strip()
