"""The folder JOB: record.json, profile.parquet, and with enough evidence workload, calls and recipe."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

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
from emulator.plugins.recorder.steps import SEEN, Pace, pace_of, step_time
from emulator.plugins.recorder.watch import Watch
from emulator.record.machine import describe_machine, mount_of, utc_now
from emulator.record.out import require_apart
from emulator.record.rows import write_rows

RECORD, PROFILE, CALLS = "record.json", "profile.parquet", "calls.parquet"
WORKLOAD, RECIPE = "workload.toml", "recipe.toml"
_FILES = (RECORD, PROFILE, CALLS, WORKLOAD, RECIPE)
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
    """Make the folder, or with `force` empty it of an earlier recording.

    Raises SpecError if it has other files, StorageError, MissingError without strace.
    """
    world = os.environ.get("WORLD_SIZE", "1")  # torchrun's
    if world != "1" or any(claim.size > 1 for claim in claims()):
        raise SpecError(
            "each rank has a recorder of its own", "record the launcher: feedrate record ... -- mpirun ..."
        )
    require_apart(folder)
    with storage_errors("cannot make the folder", folder):
        folder.mkdir(parents=True, exist_ok=True)
    earlier = _earlier_recording(folder)
    if earlier and not force:
        raise SpecError(f"{folder} exists already", "choose another --out, or add --force")
    if why := strace.usable():
        raise MissingError(f"a job is recorded with strace: {why}", "apt install strace, and permit ptrace")
    with storage_errors("cannot clear the folder", folder):
        for name in earlier:
            (folder / name).unlink()


def _earlier_recording(folder: Path) -> list[str]:
    """Return the files of an earlier recording. Raises SpecError if there are others, StorageError."""
    with storage_errors("cannot look into the folder", folder):
        names = sorted(entry.name for entry in folder.iterdir())
    # A kill or a power cut may have left the temporary file of one of ours.
    foreign = [name for name in names if (written_by(name) or (name,))[0] not in _FILES]
    if foreign or (names and not _is_recording(folder)):
        raise SpecError(
            f"{folder} has {(foreign or names)[0]!r}, which is no recording", "choose another --out"
        )
    return names


def _is_recording(folder: Path) -> bool:
    try:
        record = read_json(folder / RECORD)
    except FeedrateError:
        return False
    return isinstance(record, dict) and record.get("feedrate") == "recording"


def write(folder: Path, watch: Watch, status: int, *, warmup: int, data: Path | None = None) -> Written:
    """Write the recording of `watch`, whose job ended with `status`; `data`: the folder with its dataset.

    Raises StorageError, SpecError.
    """
    loaders = watch.loaders_and_steps()
    observation = Observation(
        created=utc_now(),
        status=status,
        machine=describe_machine(),
        mount=_mount(watch),
        processes=watch.processes,
        notes=tuple(_notes(watch)),
        loaders=tuple(loader for loader, _ in loaders),
        request_bytes=watch.request_bytes,
        in_flight=watch.in_flight,
    )
    main = main_loader(observation)
    steps = next((tables for loader, tables in loaders if loader is main), [])
    if main is not None:
        in_turn = not (main.settings.workers or main.accelerator)
        observation = replace(observation, step=step_time(steps, warmup, in_turn))
    described, refused = None, ""
    try:
        described = describe(observation, watch, _name(folder), data)
    except SpecError as error:
        refused = str(error)
    pace = pace_of(steps, warmup, described.workload.loader.prefetch if described else 0)
    written = Written(folder=folder, observation=observation, described=described, refused=refused, pace=pace)
    for number, (_, tables) in enumerate(loaders):  # in the order of record.json
        for table in tables:
            table["loader"] = number
    write_rows(folder / PROFILE, SEEN, [table for _, tables in loaders for table in tables])
    save(written)
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


def save(written: Written) -> None:
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
