"""Compare the rate of a recorded job with that of its replay on the storage where it was recorded."""

from __future__ import annotations

import math
from dataclasses import replace
from importlib.util import find_spec

from emulator.calls import ANY
from emulator.config.workload import ReplaySpec
from emulator.errors import FeedrateError, SpecError
from emulator.plugins.recorder.describe import Described, main_loader, step_words
from emulator.plugins.recorder.job import Written, save
from emulator.plugins.recorder.observation import Loader, Observation
from emulator.plugins.recorder.replay import Replay, replay
from emulator.plugins.recorder.steps import Pace
from emulator.plugins.recorder.watch import Watch


def check(written: Written, watch: Watch) -> Written:
    """Return `written`, whose workload has the rates of job and replay, or why there are none."""
    described = written.described
    if described is None:
        return written
    try:
        job = replace(described.workload.job, replay=_compared(written, described, watch), unchecked="")
    except FeedrateError as error:
        job = replace(described.workload.job, unchecked=str(error))
    workload = replace(described.workload, job=job)
    written = replace(written, described=replace(described, workload=workload))
    save(written)
    return written


def _compared(written: Written, described: Described, watch: Watch) -> ReplaySpec:
    """Replay the job. Raises SpecError if the two cannot be compared, FeedrateError if the replay fails."""
    loader, pace = _comparable(written)
    # Of a part of the files, the page cache soon has many that are read again.
    any_file = bool((described.recorded.rows["place"] == ANY).any())
    cold = _cold(loader, described, any_file)
    # For ten seconds, but not more than the job's: the more samples have been read, the more are cached.
    steps = min(2000, math.ceil(10 / pace.seconds), loader.steps // loader.ranks)
    replayed = replay(described, loader.ranks, watch.paths(loader.settings), steps, cold)
    # A sample of the replay may be a part of the job's.
    samples = loader.ranks * (pace.samples or loader.settings.batch_size or 1)
    from_storage = cold and not any_file
    differences = _differences(described, loader, pace, replayed)
    if from_storage:
        differences |= _differences_at_the_storage(written.observation, loader, replayed)
    compared = ReplaySpec(
        samples_per_second=samples / pace.seconds,
        waited=pace.waited,
        replay_samples_per_second=samples / replayed.pace.seconds,
        replay_waited=replayed.pace.waited,
        from_storage=from_storage,
        differences=differences,
    )
    if not compared.distrusted:
        return compared
    return replace(compared, why="; ".join(_reasons(written, described, replayed)))


def _differences(described: Described, loader: Loader, job: Pace, replayed: Replay) -> dict[str, float]:
    """Return the differences that do not depend on where the data were, by name."""
    differences = {"rate": abs(job.seconds / replayed.pace.seconds - 1)}
    if loader.batch_call_bytes is not None and not described.recorded.mapped:
        differences["bytes of a batch"] = apart(loader.batch_call_bytes, described.recorded.batch_bytes)
    if described.workload.accelerator.provenance == "bound":
        # The job waited for data where its replay computes.
        differences["waits within the step time"] = max(0.0, job.waited - replayed.pace.waited)
    return differences


def _differences_at_the_storage(job: Observation, loader: Loader, replayed: Replay) -> dict[str, float]:
    """Return the known differences in what the storage was asked for, by name."""
    job_bytes = _stored_bytes(loader, len(replayed.rows))
    differences = {"bytes from storage": apart(job_bytes, replayed.storage_bytes)}
    if job.request_bytes and replayed.request_bytes:
        job_requests = job_bytes / job.request_bytes
        differences["requests"] = apart(job_requests, replayed.storage_bytes / replayed.request_bytes)
        if job.in_flight and replayed.in_flight:
            differences["requests in flight"] = apart(job.in_flight, replayed.in_flight)
    return differences


def apart(job: float, replay: float) -> float:
    """Return how much the larger of two values is above the smaller one, relative to it."""
    smaller, larger = sorted((job, replay))
    if smaller > 0:
        return larger / smaller - 1
    return math.inf if larger else 0.0


def _comparable(written: Written) -> tuple[Loader, Pace]:
    """Return the main loader and the job's pace. Raises SpecError if no replay is like the job."""
    observation, pace = written.observation, written.pace
    loader = main_loader(observation)
    if pace is None or loader is None:
        raise SpecError("too few steps of the job are comparable with a replay", "record more steps")
    if find_spec("torch") is None:
        raise SpecError("a replay needs PyTorch", "pip install 'feedrate[torch]'")
    steps_of_others = sum(other.steps for other in observation.loaders if other.settings != loader.settings)
    if 2 * steps_of_others > loader.steps:
        raise SpecError("the job also takes batches of another DataLoader, which the replay does not read")
    return loader, pace


def _cold(loader: Loader, described: Described, any_file: bool) -> bool:
    """True when the job's bytes came from storage, False when they came from memory.

    `any_file`: some are of files drawn at random, and read again. Raises SpecError for both, or if unknown.
    """
    if loader.batch_storage_bytes is None:
        raise SpecError(
            "it is not known whether the job read from storage or from memory",
            "if it has several DataLoaders, give them workers, so that their reads can be told apart",
        )
    batch_bytes = max(1.0, described.recorded.batch_bytes)
    share = loader.batch_storage_bytes / batch_bytes
    first = (loader.first_storage_bytes or 0.0) / batch_bytes
    if share < 0.1 and first < 0.1:
        return False
    read_again = first >= 0.5 and any_file
    if share >= 0.9 or read_again or described.recorded.mapped:
        return True
    raise SpecError(
        f"{share:.0%} of the job's bytes came from storage, the others from memory, unlike any replay's",
        "record when all of its data are in the page cache, or none",
    )


def _stored_bytes(loader: Loader, batches: int) -> float:
    """Return the bytes from storage for each of the first `batches` of the job.

    Samples that share pages or chunks get more of each other's bytes from memory the longer a job runs.
    """
    early = min(1.0, loader.read_steps / max(1, batches))
    late = loader.batch_storage_bytes or 0.0
    first = late if loader.first_storage_bytes is None else loader.first_storage_bytes
    return early * first + (1 - early) * late


def _reasons(written: Written, described: Described, replayed: Replay) -> list[str]:
    """Return the reasons in the recording why the replay is unlike the job."""
    step, reasons = written.observation.step, []
    if described.recorded.mapped:
        reasons.append("the job maps files, and it is unknown which of their bytes it reads")
    if step is not None and step.bound:
        reasons.append(f"the step time is a bound: {step_words(step)}")
    if step is not None and step.traced:
        reasons.append("too few steps came after tracing, which slows steps down")
    flags = [flag.name for flag in replayed.point.flags if flag.name not in ("short", "unlike-job")]
    if flags:
        reasons.append(f"the replay has the flags {', '.join(flags)}")
    return reasons
