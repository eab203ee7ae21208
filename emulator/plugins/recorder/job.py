"""The folder JOB: record.json, profile.parquet, and with enough evidence workload, calls and recipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from emulator.calls import CALL
from emulator.config.reader import read_json, stated, to_plain, toml_text
from emulator.config.recipe import Recipe
from emulator.config.workload import Workload
from emulator.errors import FeedrateError, MissingError, SpecError, storage_errors
from emulator.files import write_whole, written_by
from emulator.launch.launched import claims
from emulator.plugins.recorder import strace
from emulator.plugins.recorder.describe import Described, describe, main_loader
from emulator.plugins.recorder.observation import Observation
from emulator.plugins.recorder.session import Ran
from emulator.plugins.recorder.steps import SEEN, Pace, from_batch_to_batch, pace_of, step_time
from emulator.plugins.recorder.watch import Watch
from emulator.record.machine import describe_machine, mount_of, utc_now
from emulator.record.out import require_apart
from emulator.record.rows import write_rows

RECORD, PROFILE, CALLS = "record.json", "profile.parquet", "calls.parquet"
WORKLOAD, RECIPE = "workload.toml", "recipe.toml"
_HEAD = "# Recorded by feedrate; record.json in this folder has the evidence.\n"


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


def prepare(folder: Path, force: bool) -> None:
    """Make the folder. Raises SpecError if it has other files, StorageError, MissingError without strace."""
    torchrun = os.environ.get("WORLD_SIZE", "1")
    if torchrun != "1" or any(claim.size > 1 for claim in claims()):
        raise SpecError(
            "each rank has a recorder of its own", "record the launcher: feedrate record ... -- mpirun ..."
        )
    require_apart(folder)
    with storage_errors("cannot make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
        names = sorted(entry.name for entry in folder.iterdir())
    # A kill or a power cut may have left the temporary file of one of ours.
    ours = {name for name in names if (written_by(name) or (name,))[0] in _OURS}
    if names and (ours < set(names) or not _is_recording(folder)):
        foreign = next((name for name in names if name not in ours), names[0])
        raise SpecError(f"{folder} has {foreign!r}, which is no recording", "choose another --out")
    if names and not force:
        raise SpecError(f"{folder} exists already", "choose another --out, or add --force")
    if why := strace.usable():
        raise MissingError(f"a job is recorded with strace: {why}", "apt install strace, and permit ptrace")
    with storage_errors("cannot clear the folder", folder):
        for name in names:
            (folder / name).unlink()


_OURS = (RECORD, PROFILE, CALLS, WORKLOAD, RECIPE)


def _is_recording(folder: Path) -> bool:
    try:
        record = read_json(folder / RECORD)
    except FeedrateError:
        return False
    return isinstance(record, dict) and record.get("feedrate") == "recording"


def write(folder: Path, watch: Watch, ran: Ran, *, warmup: int, data: Path | None = None) -> Written:
    """Write the recording of `watch`; `data`: the job's dataset. Raises StorageError, SpecError."""
    pairs = watch.found()
    tables = [table for _, ranks in pairs for table in ranks]
    longest = max(tables, key=len, default=np.zeros(0, SEEN))[warmup:]
    seen = Observation(
        created=utc_now(),
        status=ran.status,
        machine=describe_machine(),
        mount=_mount(watch),
        processes=watch.processes,
        complete=not (ran.status or ran.stopped),
        notes=tuple(_notes(watch)),
        loaders=tuple(loader for loader, _ in pairs),
        request_bytes=watch.request_bytes,
        in_flight=watch.in_flight,
        traced_step_seconds=from_batch_to_batch(longest[longest["traced"] == 1]),
        step_seconds=from_batch_to_batch(longest[longest["traced"] == 0]),
    )
    main = main_loader(seen)
    of_main = [table for loader, ranks in pairs for table in ranks if loader == main]
    if main is not None:
        in_turn = not (main.settings.workers or main.accelerator)
        seen = replace(seen, step=step_time(of_main, warmup, in_turn))
    described, refused = None, ""
    try:
        described = describe(seen, watch, _name(folder), data)
    except SpecError as error:
        refused = str(error)
    for number, (_, ranks) in enumerate(pairs):  # in the order of record.json
        for table in ranks:
            table["loader"] = number
    write_rows(folder / PROFILE, SEEN, tables)
    pace = pace_of(of_main, warmup, described.workload.loader.prefetch if described else 0)
    written = Written(folder=folder, observation=seen, described=described, refused=refused, pace=pace)
    put(written)
    return written


def _notes(watch: Watch) -> Sequence[str]:
    notes = []
    if watch.lost:
        notes.append(
            f"{watch.lost} events were lost, because the job made them faster than the recorder read them"
        )
    if watch.tracer.errors:
        notes.append(f"reads were traced until strace failed: {watch.tracer.errors[0]}")
    if watch.tracer.asynchronous:
        notes.append("workers set up io_uring or libaio, whose reads are not among the calls")
    return notes


def _mount(watch: Watch) -> str:
    """Return the mount of the file that was read first."""
    if not watch.log.files:
        return ""
    mount = mount_of(Path(os.fsdecode(watch.log.files[0].path)).parent)
    return f"{mount.get('mount', '')} ({mount.get('type', '')})"


def put(written: Written) -> None:
    """Write all files of the recording but its steps. Raises StorageError."""
    record = json.dumps(to_plain(written.observation, named=True), indent=1, ensure_ascii=False)
    write_whole(written.folder / RECORD, record + "\n")
    if written.described is not None:
        write_rows(written.folder / CALLS, CALL, [written.described.recorded.rows])
        write_whole(written.folder / RECIPE, toml(written.described.recipe))
        write_whole(written.folder / WORKLOAD, toml(written.described.workload))


def toml(spec: Workload | Recipe) -> str:
    """Return a recorded workload, or its recipe, as TOML."""
    return _HEAD + toml_text(stated(spec), digits=9)


def _name(folder: Path) -> str:
    """Return a name for the workload: that of the folder, with invalid characters replaced."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", folder.resolve().name).strip("-.") or "recorded"
