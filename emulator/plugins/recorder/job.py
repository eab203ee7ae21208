"""The folder JOB: record.json, profile.parquet, and with enough evidence workload.toml and recipe.toml.

Several recorders, one per rank, share a folder: each writes its part into JOB/parts and then merges all
existing parts, under a lock, so that the last one merges all.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import socket
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import reduce
from pathlib import Path

import numpy as np

from emulator.config.reader import build, read_json, stated, to_plain, toml_text
from emulator.config.recipe import Recipe
from emulator.config.workload import Workload
from emulator.errors import FeedrateError, SpecError, storage_errors
from emulator.files import write_whole, written_by
from emulator.launch.launched import claims
from emulator.plugins.recorder.describe import Described, describe, main_loader, reading_seconds
from emulator.plugins.recorder.observation import Observation
from emulator.plugins.recorder.reads import Reads
from emulator.plugins.recorder.session import Ran
from emulator.plugins.recorder.steps import (
    SEEN,
    Pace,
    Table,
    from_batch_to_batch,
    less_reading,
    pace_of,
    step_time,
)
from emulator.plugins.recorder.watch import Watch
from emulator.record.machine import describe_machine, utc_now
from emulator.record.out import require_apart
from emulator.record.rows import read_rows, write_rows

RECORD, PROFILE, WORKLOAD, RECIPE, PARTS = (
    "record.json",
    "profile.parquet",
    "workload.toml",
    "recipe.toml",
    "parts",
)
_HEAD = "# Recorded by feedrate; record.json in this folder has the evidence.\n"
_OURS = re.compile(rf"{RECORD}|{PROFILE}|{WORKLOAD}|{RECIPE}|{PARTS}|\.lock")
_PART = re.compile(r"rank-\d{5}\.(json|parquet)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Written:
    """A recording in its folder."""

    folder: Path
    observation: Observation
    described: Described | None
    refused: str
    """Why there is no workload; empty if there is one."""
    pace: Pace | None = None
    """The job's pace, for comparison with its replay's; None for too few steps."""


def several() -> tuple[int, int]:
    """Return (rank, number of recorders) if a launcher started one per rank, otherwise (0, 1)."""
    for claim in claims():
        return claim.rank, claim.size
    rank, size = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")  # torchrun's
    return (int(rank), int(size)) if rank.isdigit() and size.isdigit() else (0, 1)


def prepare(folder: Path, force: bool) -> None:
    """Make the folder. Raises SpecError if it has other files, StorageError."""
    if folder.exists() and not folder.is_dir():
        raise SpecError(f"{folder} is not a folder", "choose another --out")
    require_apart(folder)
    with storage_errors("cannot make the folder"):
        folder.mkdir(parents=True, exist_ok=True)
        names = {entry.name for entry in folder.iterdir()}
    if several()[1] > 1 and names <= {PARTS, ".lock"}:
        return  # another rank was first
    with storage_errors("cannot look into the folder"):
        foreign = _others(folder, names)
    if foreign or (names and not force):
        what = f"has {foreign[0]!r}, which is no recording" if foreign else "exists already"
        raise SpecError(f"{folder} {what}", "choose another --out" + ("" if foreign else ", or add --force"))
    with storage_errors("cannot clear the folder"):
        for name in names:
            path = folder / name
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _others(folder: Path, names: set[str]) -> list[str]:
    """Return the names in the folder that may not be feedrate's: all, without a record. Raises OSError."""
    parts = folder / PARTS
    foreign = _foreign(names, _OURS)
    if parts.is_symlink():
        foreign.append(PARTS)
    elif PARTS in names:
        foreign += _foreign((entry.name for entry in parts.iterdir()), _PART)
    made = {name for name in names if not written_by(name)} - {PARTS, ".lock"}
    return foreign if foreign or not made or _is_recording(folder) else sorted(made)


def _foreign(names: Iterable[str], ours: re.Pattern[str]) -> list[str]:
    """Return the names that no recording has. A kill or a power cut may leave a temporary file of ours."""
    return sorted(name for name in names if not ours.fullmatch((written_by(name) or (name,))[0]))


def _is_recording(folder: Path) -> bool:
    try:
        record = read_json(folder / RECORD)
    except FeedrateError:
        return False
    return isinstance(record, dict) and record.get("feedrate") == "recording"


def write(folder: Path, watch: Watch, ran: Ran, *, why: str, warmup: int) -> Written:
    """Write the recording of `watch`. Raises StorageError, SpecError."""
    pairs = watch.found(socket.gethostname())
    loaders, tables = tuple(loader for loader, _ in pairs), [table for _, table in pairs]
    most, notes = max(tables, key=len, default=np.zeros(0, SEEN))[warmup:], []
    if watch.lost:
        notes.append(
            f"{watch.lost} events were lost, because the job made them faster than the recorder read them"
        )
    if watch.tracer.errors:
        notes.append(f"reads were traced until strace failed: {watch.tracer.errors[0]}")
    if watch.asynchronous():
        notes.append("workers set up io_uring or libaio, whose reads are not among the calls")
    if watch.reduction.uncounted:
        notes.append("there were too many files to distinguish: later ones count only in bytes")
    seen = Observation(
        created=utc_now(),
        how="strace" if watch.traced else "python",
        why=why,
        status=ran.status,
        machine=describe_machine(),
        processes=watch.processes,
        complete=not (ran.status or ran.stopped),
        notes=tuple(notes),
        loaders=loaders,
        rest=watch.rest(),
        request_bytes=watch.request_bytes,
        traced_step_seconds=from_batch_to_batch(most[most["traced"] == 1]),
        step_seconds=from_batch_to_batch(most[most["traced"] == 0]),
        names=watch.reduction.names or {},
    )
    return _put(folder, seen, tables, warmup)


def _put(folder: Path, seen: Observation, tables: Sequence[Table], warmup: int) -> Written:
    """Write `seen` and its steps into the folder, merged with those of other ranks."""
    rank, size = several()
    if size == 1:
        return _merge(folder, [(seen, tables)], warmup)
    parts = folder / PARTS
    with _locked(folder):
        with storage_errors("cannot make the folder"):
            parts.mkdir(exist_ok=True)
        write_steps(parts / f"rank-{rank:05d}.parquet", tables)
        write_whole(parts / f"rank-{rank:05d}.json", json_text(seen))
        loaded = []
        for path in sorted(path for path in parts.glob("*.json") if _PART.fullmatch(path.name)):
            one = build(Observation, read_json(path))
            rows = read_rows(path.with_suffix(".parquet"), SEEN)
            loaded.append((one, [rows[rows["loader"] == n] for n in range(len(one.loaders))]))
        return _merge(folder, loaded, warmup)


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    with storage_errors("cannot lock the folder"):
        descriptor = os.open(folder / ".lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        with storage_errors("cannot lock the folder"):
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _together(ranks: Sequence[Observation]) -> Observation:
    """Return one observation of a job from those of its ranks."""
    return replace(
        ranks[0],
        loaders=tuple(loader for one in ranks for loader in one.loaders),
        rest=reduce(Reads.plus, (one.rest for one in ranks)),
        status=next((one.status for one in ranks if one.status), 0),
        processes=sum(one.processes for one in ranks),
        complete=all(one.complete for one in ranks),
        notes=tuple(dict.fromkeys(note for one in ranks for note in one.notes)),
        names={name: size for one in ranks for name, size in one.names.items()},
    )


def _merge(folder: Path, parts: Sequence[tuple[Observation, Sequence[Table]]], warmup: int) -> Written:
    """Write the recording of all ranks, with a workload and a recipe if there is enough evidence."""
    tables = [table for _, of_part in parts for table in of_part]
    merged = _together([one for one, _ in parts])
    main = main_loader(merged)
    of_main: list[Table] = []
    if main is not None:
        pairs = zip(tables, merged.loaders, strict=True)
        of_main = [table for table, one in pairs if one.settings == main.settings]
        in_turn = not (main.settings.workers or main.accelerator or main.settings.marked)
        step = step_time(of_main, warmup, in_turn)
        if step is not None and main.settings.marked:
            step = less_reading(step, reading_seconds(main), main.settings.workers)
        merged = replace(merged, step=step)
    described, refused = None, ""
    try:
        described = describe(merged, _name(folder))
    except SpecError as error:
        refused = str(error)
    with storage_errors("cannot write the recording"):
        for name in (WORKLOAD, RECIPE):
            (folder / name).unlink(missing_ok=True)
    write_steps(folder / PROFILE, tables)
    ahead = described.workload.loader.prefetch if described else 0
    pace = pace_of(of_main, warmup, ahead)
    if pace is not None and merged.step is not None and main is not None and main.settings.marked:
        pace = replace(pace, waited=merged.step.waited)
    written = Written(folder=folder, observation=merged, described=described, refused=refused, pace=pace)
    put(written)
    return written


def put(written: Written) -> None:
    """Write all files of the recording but its steps. Raises StorageError."""
    write_whole(written.folder / RECORD, json_text(written.observation))
    if written.described is not None:
        write_whole(written.folder / RECIPE, toml(written.described.recipe))
        write_whole(written.folder / WORKLOAD, toml(written.described.workload))


def toml(spec: Workload | Recipe) -> str:
    """Return a recorded workload, or its recipe, as TOML."""
    return _HEAD + toml_text(stated(spec), digits=9)


def _name(folder: Path) -> str:
    """Return a name for the workload: that of the folder, with invalid characters replaced."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-.") or "recorded"


def json_text(seen: Observation) -> str:
    """Return the text of record.json."""
    return json.dumps(to_plain(seen, named=True), indent=1, ensure_ascii=False) + "\n"


def write_steps(path: Path, tables: Sequence[Table]) -> None:
    """Write the steps of all loaders, in the order of record.json. Raises StorageError."""
    for number, table in enumerate(tables):
        table["loader"] = number
    write_rows(path, SEEN, tables)
