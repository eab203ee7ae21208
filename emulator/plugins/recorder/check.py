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
from emulator.plugins.recorder.observation import Loader
from emulator.plugins.recorder.replay import Replay, replay
from emulator.plugins.recorder.steps import Pace
from emulator.plugins.recorder.watch import Watch

_SECONDS = 10.0
_MOST_STEPS = 2000
_COLD, _WARM = 0.9, 0.1
"""Share of the job's bytes that came from storage: least for a cold replay, and most for a warm one."""


def check(written: Written, watch: Watch) -> Written:
    """Return `written`, whose workload has the rates of job and replay, or why there are none."""
    described = written.described
    if described is None:
        return written
    try:
        job = replace(described.workload.job, replay=_rates(written, described, watch), unchecked="")
    except FeedrateError as error:
        job = replace(described.workload.job, unchecked=str(error))
    workload = replace(described.workload, job=job)
    written = replace(written, described=replace(described, workload=workload))
    save(written)
    return written


def _rates(written: Written, described: Described, watch: Watch) -> ReplaySpec:
    """Return the rates. Raises SpecError if they cannot be compared, FeedrateError if the replay fails."""
    loader, job = _comparable(written)
    cold = _cold(loader, described)
    # Not more than the job's: the more samples have been read, the more does the page cache have.
    steps = min(_MOST_STEPS, math.ceil(_SECONDS / job.seconds), loader.steps // loader.ranks)
    made = replay(described, loader.ranks, watch.paths(loader.settings), steps, cold)
    # Of a part of the files, the page cache soon has many that are read again.
    stored = cold and not _reads_any_file(described)
    # A sample of the replay may be a part of the job's.
    samples = loader.ranks * (job.samples or loader.settings.batch_size or 1)
    rates = ReplaySpec(
        samples_per_second=samples / job.seconds,
        waited=job.waited,
        replay_samples_per_second=samples / made.pace.seconds,
        replay_waited=made.pace.waited,
        from_storage=stored,
        differences=_differences(written, described, loader, made, stored),
    )
    return replace(rates, why="; ".join(_reasons(written, described, made))) if rates.distrusted else rates


def _differences(
    written: Written, described: Described, loader: Loader, made: Replay, stored: bool
) -> dict[str, float]:
    """Return the known differences by name; `stored`: bytes and requests from storage are comparable."""
    observation, recorded, job = written.observation, described.recorded, written.pace
    assert job is not None
    pairs = {}
    if loader.batch_call_bytes is not None and not recorded.mapped:
        pairs["bytes of a batch"] = loader.batch_call_bytes, recorded.batch_bytes
    if stored:
        job_bytes = _stored_bytes(loader, len(made.rows))
        pairs["bytes from storage"] = job_bytes, made.storage_bytes
        if observation.request_bytes and made.request_bytes:
            job_requests = job_bytes / observation.request_bytes
            pairs["requests"] = job_requests, made.storage_bytes / made.request_bytes
            if observation.in_flight and made.in_flight:
                pairs["requests in flight"] = observation.in_flight, made.in_flight
    differences = {name: apart(*pair) for name, pair in pairs.items()}
    differences["rate"] = abs(job.seconds / made.pace.seconds - 1)
    if described.workload.accelerator.provenance == "bound":
        # The job waited for data where its replay computes.
        differences["waits within the step time"] = max(0.0, job.waited - made.pace.waited)
    return differences


def apart(one: float, other: float) -> float:
    """Return how much the larger one is above the other, relative to it."""
    smaller, larger = sorted((one, other))
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


def _reads_any_file(described: Described) -> bool:
    """Return True if some visits are to files drawn at random, so that some files are read again."""
    return bool((described.recorded.rows["place"] == ANY).any())


def _cold(loader: Loader, described: Described) -> bool:
    """True when the job's bytes came from storage, False when they came from memory.

    Raises SpecError if they came from both, or if it is not known.
    """
    if loader.batch_storage_bytes is None:
        raise SpecError("it is not known whether the job read from storage or from memory")
    share = loader.batch_storage_bytes / max(1.0, described.recorded.batch_bytes)
    first = (loader.first_storage_bytes or 0.0) / max(1.0, described.recorded.batch_bytes)
    if share < _WARM and first < _WARM:
        return False
    read_again = first >= 0.5 and _reads_any_file(described)
    if share >= _COLD or read_again or described.recorded.mapped:
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


def _reasons(written: Written, described: Described, made: Replay) -> list[str]:
    """Return the reasons in the recording why the replay is unlike the job."""
    step, reasons = written.observation.step, []
    if described.recorded.mapped:
        reasons.append("the job maps files, and it is unknown which of their bytes it reads")
    if step is not None and step.bound:
        reasons.append(f"the step time is a bound: {step_words(step)}")
    if step is not None and step.traced:
        reasons.append("too few steps came after tracing, which slows steps down")
    flags = [flag.name for flag in made.point.flags if flag.name != "short"]
    if flags:
        reasons.append(f"the replay has the flags {', '.join(flags)}")
    return reasons
