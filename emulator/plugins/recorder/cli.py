"""The command `feedrate record`: record a real training job as a workload."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from emulator import live
from emulator.analysis.flags import unlike_job
from emulator.errors import FeedrateError
from emulator.plugins.recorder.describe import main_loader, main_loaders, step_words
from emulator.plugins.recorder.job import Written
from emulator.plugins.recorder.record import record_job, will_be_checked
from emulator.plugins.recorder.session import Ran, end_as
from emulator.units import show_bytes, show_seconds


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
    keep_names: Annotated[
        bool,
        typer.Option("--keep-names", help="Keep the names of data files; default only sizes and counts."),
    ] = False,
    tracer: Annotated[
        str, typer.Option(help="How reads are recorded: strace, python, or auto for the best one.")
    ] = "auto",
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
    ran: list[Ran] = []

    def show(written: Written) -> None:
        for line in evidence(written):
            live.detail(line)
        if no_check or not will_be_checked(written):
            _say(verdict(written))
        elif not ran:
            _say(["  recorded; it is checked by a replay of about 10 s when the job has ended"])

    try:
        written = record_job(
            job,
            out,
            tracer=tracer,
            steps=steps,
            warmup=warmup,
            keep_names=keep_names,
            traced_steps=traced,
            data=data,
            checked=not no_check,
            force=force,
            on_end=ran.append,
            on_written=show,
        )
    except FeedrateError as error:
        if not ran or not ran[0].status:
            raise
        # The exit status is that of the job; report the failure of the recording in addition.
        sys.stderr.write(f"feedrate record: error: {error}\n")
    else:
        if not no_check and will_be_checked(written):
            _say(verdict(written))
        if live.for_programs():
            seen = written.observation
            live.answer(
                {
                    "folder": str(written.folder),
                    "reads": seen.how,
                    "step_seconds": seen.step.seconds if seen.step else None,
                    "workload": written.described is not None,
                    "evidence": [*evidence(written), *verdict(written)],
                }
            )
    if status := end_as(ran[0].status):
        raise typer.Exit(status)


def _say(lines: Iterable[str]) -> None:
    """Write lines to stderr, because the job's own output is on stdout."""
    for line in lines:
        sys.stderr.write(line + "\n")


def verdict(written: Written) -> list[str]:
    """Return three lines: whether to trust the recording, the size of the dataset, what to do next.

    Before them, how the job ended if it failed.
    """
    status, failed = written.observation.status, []
    if status:
        ended = f"signal {-status}" if status < 0 else f"exit status {status}"
        failed = [f"  the job ended with {ended}: it was recorded until then"]
    if written.described is None:
        return [*failed, f"  no workload: {written.refused}"]
    workload, recipe = written.described.workload, written.described.recipe
    job = workload.job.replay
    if job is None:
        why = workload.job.unchecked or "--no-check"
        trusted = f"  not checked: {why}"
    else:
        rates = (
            f"job {job.samples_per_second:.1f} samples/s, {job.waited:.0%} waiting; its replay here "
            f"{job.replay_samples_per_second:.1f} ({job.difference:+.1%}), {job.replay_waited:.0%} waiting"
        )
        flag = unlike_job(workload)
        where = "with the data in memory" if job.stored_bytes is None else "with its requests to storage"
        trusted = f"  {flag.sentence}" if flag else f"  trusted: as fast as the job {where}"
        trusted += f" ({rates})"
    files, path = recipe.files, os.fspath(written.folder)
    size = workload.sample.bytes_mean * workload.sample.samples_per_file * files
    seen = written.described.recorded.seen
    return [
        *failed,
        trusted,
        f"  dataset: {files} file{'s' if files != 1 else ''}, {show_bytes(size)}; {seen} of them were seen",
        f"  next: feedrate generate DIR --recipe {path}/recipe.toml && "
        f"feedrate sweep DIR --workload {path}/workload.toml",
    ]


def evidence(written: Written) -> list[str]:
    """Return all that was seen, as lines."""
    seen = written.observation
    report = [f"feedrate record: {written.folder}"]
    report.append(f"  reads: {seen.how}" + (f" ({seen.why})" if seen.why else "") + f", on {seen.mount}")
    if (loader := main_loader(seen)) is not None:
        settings = loader.settings
        kind = "iterable" if settings.iterable else f"{settings.dataset_length} samples, {settings.sampler}"
        batch = settings.batch_size or "of its own"
        what = f"DataLoader: batch size {batch}, {settings.workers} workers, {kind}"
        if settings.marked:
            what = f"steps of {settings.batch_size} samples, as the job marks them"
        ranks = len(main_loaders(seen))
        report.append(
            f"  {what}; {loader.steps} steps, reads of the first {loader.read_steps}: {loader.reads.files} "
            f"files, {show_bytes(loader.reads.bytes)} in {loader.reads.requests} reads"
            + (f"; {ranks} ranks together" if ranks > 1 else "")
        )
        report += [
            f"  beside it: batch size {other.settings.batch_size}, {other.steps} steps, "
            f"{show_bytes(other.reads.bytes)} read"
            for other in [other for other in seen.loaders if other.settings != settings][:10]
        ]
    told = written.described.told if written.described else ()
    report += [f"  {line}" for line in (*told, *seen.notes)]
    if seen.step is not None:
        most = "at most " if seen.step.bound else ""
        report.append(f"  step: {most}{show_seconds(seen.step.seconds)}, {step_words(seen.step)}")
    if seen.step_seconds and seen.traced_step_seconds:
        report.append(
            f"  tracing: {seen.traced_step_seconds / seen.step_seconds - 1:+.1%} "
            f"({show_seconds(seen.traced_step_seconds)} from batch to batch while reads were traced, "
            f"{show_seconds(seen.step_seconds)} afterwards)"
        )
    if written.pace is not None and written.pace.paused >= 0.01:
        report.append(
            f"  {written.pace.paused:.0%} of the time the job uses another DataLoader, as for validation: "
            "the replay does not, and the rates are those between"
        )
    return report
