"""The command `feedrate record`: record a real training job as a workload."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any

import typer

from emulator import live
from emulator.analysis.flags import unlike_job
from emulator.calls import OPEN
from emulator.config.workload import Workload
from emulator.errors import FeedrateError
from emulator.plugins.recorder.describe import Described, main_loader, step_words
from emulator.plugins.recorder.job import Written
from emulator.plugins.recorder.observation import Loader
from emulator.plugins.recorder.record import record_job, will_be_checked
from emulator.plugins.recorder.session import end_as
from emulator.units import counted, show_bytes, show_seconds


def record(
    job: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command of the job.")],
    out: Annotated[Path, typer.Option(metavar="JOB", help="Folder for the recording.")],
    data: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="The job's dataset: the recipe has its files. Default: an estimate."
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Steps to record; the job runs on. Default: all.")
    ] = None,
    warmup: Annotated[int, typer.Option(min=0, help="First steps, left out of the step time.")] = 5,
    traced: Annotated[
        int,
        typer.Option(
            "--traced-steps",
            metavar="N",
            min=1,
            help="First steps, after the warm-up, whose reads strace traces.",
        ),
    ] = 100,
    no_check: Annotated[
        bool, typer.Option("--no-check", help="Do not replay the job to compare the rates.")
    ] = False,
    force: Annotated[bool, typer.Option("--force", help="Overwrite JOB.")] = False,
) -> None:
    """Run a job unchanged, and record its reads and the time of its steps as a workload and a recipe.

    \b
    Examples:
      feedrate record --out job -- python train.py --epochs 1
      feedrate record --out job --steps 200 -- torchrun --nproc-per-node 4 train.py
    """
    ended: list[int] = []  # the exit status, when the job has ended

    def replayed(written: Written) -> bool:
        return not no_check and will_be_checked(written)

    try:
        written = record_job(
            job,
            out,
            steps=steps,
            warmup=warmup,
            traced_steps=traced,
            data=data,
            checked=not no_check,
            force=force,
            on_end=ended.append,
            on_written=lambda written: _show(written, replayed=replayed(written), running=not ended),
        )
    except FeedrateError as error:
        if not ended or not ended[0]:
            raise
        # The exit status is that of the job; report the failure of the recording in addition.
        sys.stderr.write(f"feedrate record: error: {error}\n")
    else:
        if replayed(written):
            _say(verdict(written))
        if live.for_programs():
            live.answer(_answer(written))
    if status := end_as(ended[0]):
        raise typer.Exit(status)


def _show(written: Written, *, replayed: bool, running: bool) -> None:
    """Write what was recorded. The verdict on a recording that is `replayed` comes after the replay."""
    for line in evidence(written):
        live.detail(line)
    if not replayed:
        _say(verdict(written))
    elif running:
        _say(["  recorded; it is checked by a replay of about 10 s when the job has ended"])


def _say(lines: Iterable[str]) -> None:
    """Write lines to stderr, because the job's own output is on stdout."""
    sys.stderr.writelines(line + "\n" for line in lines)


def _answer(written: Written) -> dict[str, Any]:
    """Return the answer of --json."""
    step = written.observation.step
    return {
        "folder": str(written.folder),
        "step_seconds": step.seconds if step else None,
        "workload": written.described is not None,
        "evidence": [*evidence(written), *verdict(written)],
    }


def verdict(written: Written) -> list[str]:
    """Return three lines: whether to trust the recording, the size of the dataset, what to do next.

    Before them, how the job ended if it failed.
    """
    lines = []
    if status := written.observation.status:
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        lines.append(f"  the job ended with {ended}: it was recorded until then")
    if written.described is None:
        return [*lines, f"  no workload: {written.refused}"]
    workload, files = written.described.workload, written.described.recipe.files
    size = workload.sample.bytes_mean * workload.sample.samples_per_file * files
    seen, folder = written.described.recorded.seen, os.fspath(written.folder)
    return [
        *lines,
        f"  {_trusted(workload)}",
        f"  dataset: {counted(files, 'file')}, {show_bytes(size)}; {seen} of them were seen",
        f"  next: feedrate generate DIR --recipe {folder}/recipe.toml && "
        f"feedrate sweep DIR --workload {folder}/workload.toml",
    ]


def _trusted(workload: Workload) -> str:
    """Return whether the replay was as fast as the job, with both rates."""
    job = workload.job.replay
    if job is None:
        return f"not checked: {workload.job.unchecked}"
    where = "with its requests to storage" if job.from_storage else "with the data in memory"
    flag = unlike_job(workload)
    trusted = flag.sentence if flag else f"trusted: as fast as the job {where}"
    return (
        f"{trusted} (job {job.samples_per_second:.1f} samples/s, {job.waited:.0%} waiting; its replay here "
        f"{job.replay_samples_per_second:.1f} ({job.difference:+.1%}), {job.replay_waited:.0%} waiting)"
    )


def evidence(written: Written) -> list[str]:
    """Return all that was seen, as lines."""
    observation = written.observation
    lines = [f"feedrate record: {written.folder}", f"  data: on {observation.mount}"]
    main = main_loader(observation)
    if main is not None:
        lines.append(_loader_line(main))
    if written.described is not None:
        lines += _read_lines(written.described)
    lines += [f"  {note}" for note in observation.notes]
    if (step := observation.step) is not None:
        at_most = "at most " if step.bound else ""
        lines.append(f"  step: {at_most}{show_seconds(step.seconds)}, {step_words(step)}")
    return lines


def _loader_line(loader: Loader) -> str:
    settings, reads = loader.settings, loader.reads
    return (
        f"  DataLoader: batch size {settings.batch_size or 'of its own'}, {settings.workers} workers, "
        f"{settings.dataset_length or 'an unknown number of'} samples; {loader.steps} steps of "
        f"{loader.ranks} processes, reads of the first {loader.read_steps}: {reads.files} files, "
        f"{show_bytes(reads.bytes)} in {reads.requests} reads"
    )


def _read_lines(described: Described) -> list[str]:
    """Return lines on the traced calls, and on how many files there are."""
    recorded, files = described.recorded, described.recipe.files
    rows = recorded.rows
    batches, threads = int(rows["batch"].max()) + 1, int(rows["thread"].max()) + 1
    opens = (rows["op"] == OPEN).sum() / batches
    lines = [
        f"  {batches} batches of {show_bytes(recorded.batch_bytes)} in {len(rows)} calls, {opens:.3g} opens "
        f"each, by {counted(threads, 'thread')} of a worker"
    ]
    if abs(files / recorded.files - 1) > 0.1:
        lines.append(f"  the folder has {files} files; the reads look like {recorded.files}")
    elif recorded.guessed:
        lines.append(
            f"  the dataset has no length: the recipe has the {recorded.seen} files that were read; "
            "record --data DIR takes those of a folder"
        )
    if recorded.mapped:
        lines.append("  files are mapped: which of their bytes are read is a guess")
    return lines
