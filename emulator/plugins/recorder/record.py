"""Record a job: run it, write the recording, and check it with a replay."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from emulator.errors import FeedrateError, SpecError
from emulator.plugins.recorder.check import check
from emulator.plugins.recorder.job import Written, prepare, put, write
from emulator.plugins.recorder.session import Ran, run_job
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
    on_end: Callable[[Ran], None] = lambda _: None,
    on_written: Callable[[Written], None] = lambda _: None,
) -> Written:
    """Run `command`, record it into the folder `out`, and with `checked` compare a replay with it.

    `data` is the folder with the job's dataset, whose files the recipe then has. A job that a signal ended is
    not replayed. `on_written` is called when the recording is in `out`, before the replay: where `steps` are
    given, while the job runs on; `on_end` when the job has ended. Call it in the main thread. Raises
    MissingError, SpecError, DatasetError, StorageError, LaunchError.
    """
    if data is not None and not data.is_dir():
        raise SpecError(f"--data: there is no folder {data}")
    prepare(out, force)
    watch = Watch()
    early: list[Written] = []
    failed: list[FeedrateError] = []

    def keep(ran: Ran) -> Written:
        written = write(out, watch, ran, warmup=warmup, data=data)
        on_written(written)
        return written

    def keep_early() -> None:
        try:
            early.append(keep(Ran(status=0, stopped=True)))
        except FeedrateError as error:  # the job runs on
            failed.append(error)

    ran = run_job(command, watch, steps=steps, warmup=warmup, traced_steps=traced_steps, on_full=keep_early)
    on_end(ran)
    if failed:
        raise failed[0]
    if early:
        written = early[0]
        written = replace(written, observation=replace(written.observation, status=ran.status))
        put(written)
    else:
        written = keep(ran)
    return check(written, watch) if checked and will_be_checked(written) else written


def will_be_checked(written: Written) -> bool:
    """Return True if there is a workload to replay and no signal ended the job."""
    return written.described is not None and 0 <= written.observation.status < _BY_SIGNAL
