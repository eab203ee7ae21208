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
from emulator.plugins.recorder.describe import main_loader, main_loaders, reads_words, step_words
from emulator.plugins.recorder.job import Written
from emulator.plugins.recorder.observation import Loader, Observation
from emulator.plugins.recorder.record import record_job, will_be_checked
from emulator.plugins.recorder.session import Ran, end_as
from emulator.plugins.recorder.steps import FEW
from emulator.units import show_bytes, show_seconds


def record(
    job: Annotated[list[str], typer.Argument(metavar="-- COMMAND...", help="The command of the job.")],
    out: Annotated[Path, typer.Option(metavar="JOB", help="Folder for the recording.")],
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
        _say(lines(written))
        if not no_check and written.described is not None and will_be_checked(written):
            access = written.described.workload.access
            replays = "up to eight replays, each" if access.mapped and not access.places else "a replay"
            _say([f"  checking the recording by {replays} of about 10 s (--no-check skips it)"])

    try:
        written = record_job(
            job,
            out,
            tracer=tracer,
            steps=steps,
            warmup=warmup,
            keep_names=keep_names,
            traced_steps=traced,
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
        _say(check_lines(written))
        if live.for_programs():
            seen = written.observation
            live.answer(
                {
                    "folder": str(written.folder),
                    "reads": seen.how,
                    "step_seconds": seen.step.seconds if seen.step else None,
                    "workload": written.described is not None,
                    "told": [*lines(written), *check_lines(written)],
                }
            )
    if status := end_as(ran[0].status):
        raise typer.Exit(status)


def _say(lines: Iterable[str]) -> None:
    """Write lines to stderr, because the job's own output is on stdout."""
    for line in lines:
        sys.stderr.write(line + "\n")


def check_lines(written: Written) -> list[str]:
    """Return lines with the rates of job and replay, or with the reason why there is no replay."""
    workload = written.described.workload if written.described else None
    if workload is None or (job := workload.job.replay) is None:
        unchecked = workload and workload.job.unchecked
        return [f"  not checked by a replay: {unchecked}"] if unchecked else []
    seen, report = written.observation, list[str]()
    if seen.of_map is not None:
        report.append(
            f"  a sample has {show_bytes(seen.of_map)} of a mapped file: with these, storage delivers to the "
            "replay what it delivered to the job"
        )
    report.append(
        f"  your job: {job.samples_per_second:.1f} samples/s, {job.waited:.0%} waiting; its replay here: "
        f"{job.replay_samples_per_second:.1f} ({job.difference:+.1%}), {job.replay_waited:.0%} waiting"
    )
    if flag := unlike_job(workload):
        report.append(f"  {flag.sentence} Results made with it have the flag {flag.name}.")
    return report


def _loader_lines(seen: Observation, loader: Loader) -> list[str]:
    """Return lines on the DataLoader that reads most, and on those beside it."""
    settings, read, ranks = loader.settings, loader.seen_steps, len(main_loaders(seen))
    kind = "iterable" if settings.iterable else f"{settings.dataset_length} samples, {settings.sampler}"
    what = f"DataLoader: batch size {settings.batch_size or 'of its own'}, {settings.workers} workers, {kind}"
    if settings.marked:
        what = f"steps of {settings.batch_size} samples, as the job marks them"
    first = f", reads of the first {read}" if read < loader.steps else ""
    together = f"; {ranks} ranks together, whose files count for each" if ranks > 1 else ""
    others = [other for other in seen.loaders if other.settings != settings]
    return [
        f"  {what}; {loader.steps} steps{first}: {reads_words(loader.reads)}{together}",
        *(
            f"  beside it: batch size {other.settings.batch_size}, {other.steps} steps: "
            f"{reads_words(other.reads)}"
            for other in others[:10]
        ),
    ]


def lines(written: Written) -> list[str]:
    """Return the report on a recording, as lines."""
    seen: Observation = written.observation
    report = [f"feedrate record: {written.folder}"]
    if seen.status:
        ended = f"signal {-seen.status}" if seen.status < 0 else f"exit status {seen.status}"
        report.append(f"  the job ended with {ended}: it was recorded until then")
    report.append(f"  reads: {seen.how}" + (f" ({seen.why})" if seen.why else ""))
    loader = main_loader(seen)
    if loader is None:
        used = "was used" if seen.processes else "could be seen"
        report.append(f"  no DataLoader of PyTorch {used}; all processes: {reads_words(seen.rest)}")
    else:
        report += _loader_lines(seen, loader)
    told = written.described.told if written.described else ()
    report += [f"  {line}" for line in (*told, *seen.notes)]
    if seen.step is not None:
        step = seen.step
        most = "at most " if step.bound else ""
        report.append(f"  step: {most}{show_seconds(step.seconds)}, {step_words(step)}")
    if seen.step_seconds and seen.traced_step_seconds:
        cost = f"{seen.traced_step_seconds / seen.step_seconds - 1:+.1%}"
        if seen.step is not None and (
            seen.step.in_flight > 1 or (seen.step.bound and seen.step.steps >= FEW)
        ):
            # Between two batches it only submits a step: tracing takes of the time that it would wait later.
            cost = "its cost is not measured, as the host may run ahead of its accelerator"
        report.append(
            f"  tracing: {cost} ({show_seconds(seen.traced_step_seconds)} from batch to batch while "
            f"reads were traced, {show_seconds(seen.step_seconds)} afterwards)"
        )
    if written.pace is not None and written.pace.paused >= 0.01:
        report.append(
            f"  {written.pace.paused:.0%} of the time the job uses another DataLoader, as for validation: "
            "the replay does not, and the rates are those between"
        )
    if written.described is not None:
        workload = written.described.workload
        size = workload.sample.bytes_mean * workload.sample.samples_per_file * written.described.recipe.files
        path = os.fspath(written.folder)
        report.append(f"  feedrate generate DIR --recipe {path}/recipe.toml      # {show_bytes(size)}")
        report.append(f"  feedrate sweep DIR --workload {path}/workload.toml")
    elif written.refused:
        report.append(f"  no workload: {written.refused}")
    return report
