"""Compare the rate of a recorded job with that of its replay on the storage where it was recorded."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from typing import Any

from emulator.config.workload import UNLIKE, UNLIKE_REQUESTS, ReplaySpec, Workload
from emulator.errors import FeedrateError, SpecError
from emulator.plugins.recorder.describe import Described, describe, main_loader, main_loaders, step_words
from emulator.plugins.recorder.job import Written, put, several
from emulator.plugins.recorder.maps import less_replayed, reads_unseen, sample_bytes
from emulator.plugins.recorder.observation import Loader
from emulator.plugins.recorder.replay import replay
from emulator.plugins.recorder.watch import Watch
from emulator.record.steps import Steps
from emulator.units import show_bytes

_SECONDS = 10.0
_MOST_STEPS = 2000
_COLD, _WARM = 0.9, 0.1
"""Share of the job's bytes that came from storage: least for a cold replay, and most for a warm one."""
_BYTES_DIFFER = 0.1


def check(written: Written, watch: Watch) -> Written:
    """Return `written`, whose workload has the rates of job and replay, or why there are none.

    Replays also find how many bytes of a mapped file a sample has.
    """
    described = written.described
    if described is None:
        return written
    try:
        written, described, rates = _compared(written, described, watch)
        job = replace(described.workload.job, replay=rates, unchecked="")
    except FeedrateError as error:
        job = replace(described.workload.job, unchecked=str(error))
    workload = replace(described.workload, job=job)
    written = replace(written, described=replace(described, workload=workload))
    put(written)
    return written


def _compared(written: Written, described: Described, watch: Watch) -> tuple[Written, Described, ReplaySpec]:
    """Return the rates, and the recording and its description with what replays have found.

    Raises SpecError if they cannot be compared, FeedrateError if a replay fails.
    """
    observation, job = written.observation, written.pace
    loader, ranks = main_loader(observation), len(main_loaders(observation))
    if job is None or loader is None:
        raise SpecError("too few steps of the job are comparable with a replay", "record more steps")
    if several()[1] > 1:
        raise SpecError(
            "several recorders share the job", "record the launcher: feedrate record -- torchrun ..."
        )
    if find_spec("torch") is None:
        raise SpecError("a replay needs PyTorch", "pip install 'feedrate[torch]'")
    stored = _stored(loader, described.workload)
    again = partial(replay, ranks=ranks, paths=watch.files(loader.settings), stored=stored)

    def describe_as(**found: Any) -> Described:
        nonlocal observation
        observation = replace(observation, **found)
        return describe(observation, described.workload.name)

    access = described.workload.access
    if access.mapped and not access.places:  # of its first batches: they came from storage

        def delivered(size: int) -> float:
            return again(describe_as(of_map=size).workload, steps=steps, stored=True).storage_bytes

        steps = round(loader.asked_batches / ranks) - described.workload.batches_ahead
        of_job = (loader.reads.storage_bytes or 0) / loader.asked_batches
        first = described.workload.sample_read.bytes_mean
        described = describe_as(of_map=sample_bytes(of_job, first, UNLIKE / 2, delivered))
    # Not more than the job's: the more samples have been read, the more does the page cache have.
    steps = min(_MOST_STEPS, math.ceil(_SECONDS / job.seconds), loader.steps // ranks)
    made = again(described.workload, steps=steps)
    if observation.step is not None and reads_unseen(observation.step, loader):
        step = less_replayed(observation.step, job, made.pace)
        job, described = replace(job, waited=step.waited), describe_as(step=step)
        made = again(described.workload, steps=steps)
    written = replace(written, observation=observation, pace=job)
    # A sample of the replay may be a part of the job's.
    samples, workload = ranks * (job.samples or loader.settings.batch_size or 1), described.workload
    counted = stored and observation.request_bytes and made.request_bytes
    rates = ReplaySpec(
        samples_per_second=samples / job.seconds,
        waited=job.waited,
        replay_samples_per_second=samples / made.pace.seconds,
        replay_waited=made.pace.waited,
        amplification=_amplification(loader, workload, len(made.rows)) if stored else None,
        replay_amplification=made.point.read_amplification if stored else None,
        request_bytes=observation.request_bytes if counted else None,
        replay_request_bytes=made.request_bytes if counted else None,
        kept=_kept(loader, workload),
        uncertain=loader.uneven,
        refilled=job.pauses * workload.batches_ahead,
        hidden=max(0.0, job.waited - made.pace.waited) if workload.accelerator.provenance == "bound" else 0.0,
    )
    if not rates.trusted:
        flags = [flag.name for flag in made.point.flags if flag.name != "short"]
        rates = replace(rates, why=_why(written, workload, loader, rates, made.rows, flags))
    return written, described, rates


def _stored(loader: Loader, workload: Workload) -> bool:
    """True when the job's bytes came from storage, False when they came from memory.

    Raises SpecError if they came from both, or if it is not known.
    """
    stored = _delivered(loader, workload)
    if stored is None:
        raise SpecError("it is not known whether the job read from storage or from memory", "")
    # Which bytes of a map the job wanted is not known: it may be less than a replay reads.
    cold = _WARM if workload.access.mapped else _COLD
    if _WARM < stored < cold:
        raise SpecError(
            f"{stored:.0%} of the job's bytes came from storage, the others from memory, unlike any replay's",
            "record when all of its data are in the page cache, or none",
        )
    return stored > cold


def _delivered(loader: Loader, workload: Workload) -> float | None:
    """Return the job's bytes from storage, once untraced, for each byte that a replay reads, or None."""
    # Not relative to the bytes of its calls: libraries read headers again, and page faults make no calls.
    return loader.batch_storage_bytes and loader.batch_storage_bytes / workload.batch_bytes


def _amplification(loader: Loader, workload: Workload, batches: int) -> float:
    """Return the bytes from storage for each byte of the first `batches` of the job.

    A replay reads `batches`. Samples at random places that share pages or chunks get more of each other's
    bytes from memory the longer a job runs. Others do not, and their first batches also fill buffers.
    """
    asked, first, late = loader.asked_batches, loader.reads.storage_bytes, _delivered(loader, workload) or 0.0
    apart = workload.sample.samples_per_file == 1 or workload.access.pattern != "random"
    if apart or not asked or not first:
        return late
    early = min(1.0, asked / batches)
    return early * first / asked / workload.batch_bytes + (1 - early) * late


def _kept(loader: Loader, workload: Workload) -> float:
    """Return the share of a replay's bytes that the job did not read once its calls were no longer traced."""
    # The counters of a process that is killed lag behind, which matters if few steps came later.
    if loader.batch_call_bytes is None or loader.reads.mapped or loader.share_read > 0.5:
        return 0.0
    return max(0.0, 1 - loader.batch_call_bytes / workload.batch_bytes)


def _why(
    written: Written, workload: Workload, loader: Loader, rates: ReplaySpec, rows: Steps, flags: Sequence[str]
) -> str:
    """Return the reasons in the recording why the replay is unlike the job."""
    step, reasons = written.observation.step, []
    if rates.refilled > UNLIKE and written.pace is not None:
        reasons.append(f"it stops every {1 / written.pace.pauses:.0f} steps")
    if rates.uncertain > UNLIKE:
        more = math.ceil(loader.steps * rates.uncertain / UNLIKE / len(main_loaders(written.observation)))
        reasons.append(f"the job reads in large pieces, of which few were recorded: record {more} steps")
    if len(reasons) == sum(value > most for value, most in rates.differences) == 1:
        return reasons[0]  # nothing else is distrusted
    of_job = loader.reads.bytes / loader.asked_batches if loader.asked_batches else 0.0
    of_replay = float(rows["bytes"].mean())
    maps, again = loader.reads.mapped > 0, workload.access.opens > 1  # for a header
    if of_job and not (maps or again) and abs(of_replay / of_job - 1) > _BYTES_DIFFER:
        reasons.append(f"the job reads {show_bytes(of_job)} for a step, the replay {show_bytes(of_replay)}")
    if (
        maps
        and not workload.access.places
        and (rates.reads_ratio - 1 > UNLIKE or rates.requests_ratio - 1 > UNLIKE_REQUESTS)
    ):
        reasons.append("the job maps files, and it is unknown which of their bytes it reads")
    if step is not None and step.bound:
        reasons.append(f"the step time is a bound: {step_words(step)}")
    if step is not None and step.traced:
        reasons.append("too few steps came after tracing, which slows steps down")
    if loader.others:
        reasons.append("the job also takes batches of another DataLoader")
    if flags:
        reasons.append(f"the replay has the flags {', '.join(flags)}")
    return "; ".join(reasons) or f"the recording shows no reason, in {len(rows)} steps of the replay"
