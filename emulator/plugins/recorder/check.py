"""Compare the rate of a recorded job with that of its replay on the storage where it was recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec

from emulator.calls import ANY
from emulator.config.workload import ReplaySpec
from emulator.errors import FeedrateError, SpecError
from emulator.plugins.recorder.describe import Described, main_loader, main_loaders, step_words
from emulator.plugins.recorder.job import Written, put
from emulator.plugins.recorder.observation import Loader
from emulator.plugins.recorder.replay import replay
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
    put(written)
    return written


def _rates(written: Written, described: Described, watch: Watch) -> ReplaySpec:
    """Return the rates. Raises SpecError if they cannot be compared, FeedrateError if the replay fails."""
    seen, job, workload = written.observation, written.pace, described.workload
    loader, ranks = main_loader(seen), len(main_loaders(seen))
    if job is None or loader is None:
        raise SpecError("too few steps of the job are comparable with a replay", "record more steps")
    if find_spec("torch") is None:
        raise SpecError("a replay needs PyTorch", "pip install 'feedrate[torch]'")
    cold = _cold(loader, described)
    # Not more than the job's: the more samples have been read, the more does the page cache have.
    steps = min(_MOST_STEPS, math.ceil(_SECONDS / job.seconds), loader.steps // ranks)
    made = replay(described, ranks, watch.paths(loader.settings), steps, cold)
    # Of a part of the files, the page cache soon has many that are read again.
    stored = cold and not (described.recorded.rows["place"] == ANY).any()
    counted = stored and seen.request_bytes and made.request_bytes
    # A sample of the replay may be a part of the job's.
    samples = ranks * (job.samples or loader.settings.batch_size or 1)
    rates = ReplaySpec(
        samples_per_second=samples / job.seconds,
        waited=job.waited,
        replay_samples_per_second=samples / made.pace.seconds,
        replay_waited=made.pace.waited,
        bytes=None if described.recorded.mapped else loader.batch_call_bytes,
        replay_bytes=described.recorded.batch_bytes,
        stored_bytes=_stored_bytes(loader, len(made.rows)) if stored else None,
        replay_stored_bytes=made.storage_bytes if stored else None,
        request_bytes=seen.request_bytes if counted else None,
        replay_request_bytes=made.request_bytes if counted else None,
        in_flight=seen.in_flight if counted else None,
        replay_in_flight=made.in_flight if counted else None,
        refilled=job.pauses * workload.batches_ahead,
        hidden=max(0.0, job.waited - made.pace.waited) if workload.accelerator.provenance == "bound" else 0.0,
    )
    if rates.trusted:
        return rates
    flags = [flag.name for flag in made.point.flags if flag.name != "short"]
    return replace(rates, why="; ".join(_reasons(written, loader, flags)))


def _cold(loader: Loader, described: Described) -> bool:
    """True when the job's bytes came from storage, False when they came from memory.

    Raises SpecError if they came from both, or if it is not known.
    """
    if loader.batch_storage_bytes is None:
        raise SpecError("it is not known whether the job read from storage or from memory")
    share = loader.batch_storage_bytes / max(1.0, described.recorded.batch_bytes)
    first = (loader.first_storage_bytes or 0.0) / max(1.0, described.recorded.batch_bytes)
    again = (described.recorded.rows["place"] == ANY).any()
    if share < _WARM and first < _WARM:
        return False
    if share >= _COLD or (again and first >= 0.5) or described.recorded.mapped:
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


def _reasons(written: Written, loader: Loader, flags: Sequence[str]) -> list[str]:
    """Return the reasons in the recording why the replay is unlike the job."""
    step, pace, reasons = written.observation.step, written.pace, []
    if pace is not None and pace.pauses:
        reasons.append(f"the job stops every {1 / pace.pauses:.0f} steps")
    if written.described is not None and written.described.recorded.mapped:
        reasons.append("the job maps files, and it is unknown which of their bytes it reads")
    if step is not None and step.bound:
        reasons.append(f"the step time is a bound: {step_words(step)}")
    if step is not None and step.traced:
        reasons.append("too few steps came after tracing, which slows steps down")
    if loader.others:
        reasons.append("the job also takes batches of another DataLoader")
    if flags:
        reasons.append(f"the replay has the flags {', '.join(flags)}")
    return reasons
