"""An OUT folder: `run.json` (the result), `steps.parquet` (every step), and spools while a run goes on.

    OUT/run.json                the RunResult; results/README.md has it field by field
    OUT/steps.parquet           all rows of record.step.STEP
    OUT/spool/rank-00007.steps  raw rows of rank 7, appended while it runs; gone once steps.parquet is there
    OUT/failure.txt             why a run ended early, in the words of the first rank that failed

Files appear whole: written under a temporary name, synced, renamed. A killed run leaves its spools.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from emulator.errors import SpecError, StorageError, storage_error, storage_errors
from emulator.files import is_temporary, replacing, write_whole
from emulator.record.plain import from_plain, to_plain
from emulator.record.result import SCHEMA, RunResult
from emulator.record.steps import STEP, Steps

RESULT = "run.json"
STEPS = "steps.parquet"
SPOOL = "spool"
FAILURE = "failure.txt"
_PROBE = ".feedrate-probe"
_PROBE_BYTES = 65536  # more than one block, so that a full disk shows


def _own_files(path: Path) -> list[Path]:
    """What feedrate itself may have left in an OUT folder, and nothing else."""
    names = [RESULT, STEPS, FAILURE, _PROBE, f".{RESULT}.tmp", f".{STEPS}.tmp"]
    left = [file.name for file in path.glob("*.part") if is_temporary(file.name)]
    names += [name for name in left if name.startswith((f"{RESULT}.", f"{STEPS}."))]
    return [path / name for name in names] + list((path / SPOOL).glob("rank-*.steps"))


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

    With `force`, feedrate's own files of an earlier run are removed; files of others stay. Raises SpecError
    when OUT holds files and `force` is not given; StorageError when it cannot be written.
    """
    check_out(path, force)
    with storage_errors(f"cannot create the folder {path}"):
        path.mkdir(parents=True, exist_ok=True)
    with storage_errors(f"cannot write to {path}"):
        for old in _own_files(path):
            old.unlink(missing_ok=True)
        if (path / SPOOL).is_dir() and not any((path / SPOOL).iterdir()):
            (path / SPOOL).rmdir()
        _probe(path / _PROBE)


def _probe(path: Path) -> None:
    try:
        with path.open("wb") as file:
            file.write(bytes(_PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    finally:
        path.unlink(missing_ok=True)


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
    with storage_errors("cannot read the result"):
        raw = file.read_bytes()
    try:
        content = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{file} is not valid JSON ({error})", "the file is damaged; run again") from None
    _check_schema(file, content)
    try:
        result: RunResult = from_plain(RunResult, content)
    except SpecError as error:
        raise SpecError(f"{file}: {error.what}", "it is no result of feedrate, or damaged") from None
    return result


def _check_schema(file: Path, content: Any) -> None:
    version = content.get("schema") if isinstance(content, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise SpecError(f"{file} is no result of feedrate: it has no schema number", "give an OUT folder")
    if version > SCHEMA:
        raise SpecError(
            f"{file} has schema {version}, made by a newer feedrate; this one reads up to {SCHEMA}",
            "upgrade feedrate",
        )


def write_steps(path: Path, rows: Steps) -> None:
    """Write OUT/steps.parquet whole or not at all, rows as they are. Raises StorageError."""
    import pyarrow
    import pyarrow.parquet

    table = pyarrow.table({name: np.ascontiguousarray(rows[name]) for name in STEP.names or ()})
    with replacing(path / STEPS) as file:
        pyarrow.parquet.write_table(table, file, compression="zstd")


def read_steps(path: Path) -> Steps:
    """The rows of OUT/steps.parquet, and those of later points that are still in the spools; may be empty.

    Raises StorageError when it cannot be read, SpecError when it is no step log.
    """
    written = _read_parquet(path) if (path / STEPS).is_file() else np.zeros(0, dtype=STEP)
    spooled = read_spools(path)
    if not len(written):
        return spooled
    return np.concatenate([written, spooled[spooled["point"] > written["point"].max()]])


def _read_parquet(path: Path) -> Steps:
    import pyarrow
    import pyarrow.parquet

    try:
        with (path / STEPS).open("rb") as file:
            table = pyarrow.parquet.read_table(file)
    except pyarrow.ArrowException as error:
        raise SpecError(f"{path / STEPS} is not valid Parquet ({error})", "the file is damaged") from None
    except OSError as error:
        if error.errno is None:  # pyarrow's own "Couldn't deserialize": damaged, not unreadable
            raise SpecError(f"{path / STEPS} is not valid Parquet ({error})", "the file is damaged") from None
        raise storage_error(error, "cannot read the step log") from None
    return _rows(path / STEPS, table)


def _rows(file: Path, table: Any) -> Steps:
    rows = np.zeros(table.num_rows, dtype=STEP)
    for name in STEP.names or ():
        if name not in table.column_names:
            raise SpecError(f"{file} has no column {name}", "it is no step log of feedrate")
        column = table[name].to_numpy()
        if column.dtype != STEP[name]:
            raise SpecError(f"{file}: column {name} is {column.dtype}, not {STEP[name]}", "it is no step log")
        rows[name] = column
    return rows


class Spool:
    """Appends the rows of one rank to OUT/spool/rank-00007.steps, so that a killed run keeps them."""

    def __init__(self, path: Path, rank: int) -> None:
        """Open the spool of `rank` (of the whole world) and cut a torn last row. Raises StorageError."""
        self._file = path / SPOOL / f"rank-{rank:05d}.steps"
        with storage_errors("cannot write the step log"):
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._descriptor = os.open(
                self._file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644
            )
            size = os.fstat(self._descriptor).st_size
            if size % STEP.itemsize:
                os.ftruncate(self._descriptor, size - size % STEP.itemsize)

    def append(self, rows: Steps) -> None:
        """Hand the rows to the system: they outlive this process, not a power cut. Raises StorageError."""
        left = memoryview(rows.tobytes())
        with storage_errors(f"cannot write the step log {self._file}"):
            while left:
                left = left[os.write(self._descriptor, left) :]

    def close(self) -> None:
        """Close the file; a second call does nothing. Raises StorageError."""
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            with storage_errors(
                f"cannot write the step log {self._file}"
            ):  # a network file system may refuse only here
                os.close(descriptor)

    def __enter__(self) -> Spool:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def read_spools(path: Path) -> Steps:
    """The rows of all spools, rank after rank, each in the order written; a torn last row is left out.

    Raises StorageError.
    """
    parts = [np.zeros(0, dtype=STEP)]
    with storage_errors("cannot read the step log"):
        for file in sorted((path / SPOOL).glob("rank-*.steps")):
            raw = file.read_bytes()
            parts.append(np.frombuffer(raw[: len(raw) // STEP.itemsize * STEP.itemsize], dtype=STEP))
    return np.concatenate(parts)


def remove_spools(path: Path) -> None:
    """Remove the spools, once steps.parquet holds their rows. Raises StorageError."""
    with storage_errors("cannot remove the spools"):
        for file in (path / SPOOL).glob("rank-*.steps"):
            file.unlink(missing_ok=True)
        if (path / SPOOL).is_dir() and not any((path / SPOOL).iterdir()):
            (path / SPOOL).rmdir()


def continue_out(path: Path, steps: Steps) -> None:
    """Make OUT, which holds a sweep that was cut off, ready to go on after `steps`. Raises StorageError."""
    if len(steps):
        write_steps(path, steps)
    remove_spools(path)
    with storage_errors(f"cannot write to {path}"):
        (path / FAILURE).unlink(missing_ok=True)


def claim_failure(path: Path, line: str) -> bool:
    """Write `line` to OUT/failure.txt; False when another rank has already said why.

    True also when the folder cannot be written: then whoever asks had better say it aloud.
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
    """Why the run ended early; empty when nobody said."""
    try:
        return (path / FAILURE).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
