"""Record a job: run it, write the recording, and check it with a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from emulator.errors import FeedrateError, SpecError
from emulator.plugins.recorder.check import check
from emulator.plugins.recorder.job import Written, prepare, save, write
from emulator.plugins.recorder.session import run_job
from emulator.plugins.recorder.watch import Watch

_BY_SIGNAL = 128
"""Exit status of a shell, less the signal's number, if a signal ended the job."""


def record_job(
    command: Sequence[str],
    out: Path,
    *,
    steps: int | None = None,
    warmup: int = 5,
    traced_steps: int = 100,
    data: Path | None = None,
    checked: bool = True,
    force: bool = False,
    on_end: Callable[[int], None] = lambda _: None,
    on_written: Callable[[Written], None] = lambda _: None,
) -> Written:
    """Run `command`, record it into the folder `out`, and with `checked` compare a replay with it.

    `data` is the folder with the job's dataset, whose files the recipe then has. A job that a signal ended is
    not replayed. `on_written` is called when the recording is in `out`, before the replay: where `steps` are
    given, while the job runs on; `on_end` when the job has ended, with its status. Call it in the main
    thread. Raises MissingError, SpecError, DatasetError, StorageError, LaunchError.
    """
    if data is not None and not data.is_dir():
        raise SpecError(f"--data: there is no folder {data}")
    prepare(out, force)
    watch = Watch()
    early: list[Written | FeedrateError] = []

    def write_recording(status: int) -> Written:
        written = write(out, watch, status, warmup=warmup, data=data)
        on_written(written)
        return written

    def write_early() -> None:
        try:
            early.append(write_recording(0))
        except FeedrateError as error:  # the job runs on
            early.append(error)

    status = run_job(
        command, watch, steps=steps, warmup=warmup, traced_steps=traced_steps, on_full=write_early
    )
    on_end(status)
    written = early[0] if early else write_recording(status)
    if isinstance(written, FeedrateError):
        raise written
    if early:
        written = replace(written, observation=replace(written.observation, status=status))
        save(written)
    return check(written, watch) if checked and will_be_checked(written) else written


def will_be_checked(written: Written) -> bool:
    """Return True if there is a workload to replay and no signal ended the job."""
    return written.described is not None and 0 <= written.observation.status < _BY_SIGNAL
