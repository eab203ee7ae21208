"""Replay a recording on the storage where it was made, and compare the rate with that of the job.

The replay reads the files of the job through links from a folder in memory: it writes nothing to the user's
storage, and keeps no names of files. It reads them from memory or from storage, as the job did.
"""

from __future__ import annotations

import math
import os
import stat
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from emulator import live
from emulator.analysis.throughput import durations
from emulator.cli.entry import rank_server
from emulator.config.workload import UNLIKE, ReplaySpec, Workload
from emulator.dataset.manifest import Manifest, write_manifest
from emulator.dataset.names import Listed
from emulator.dataset.table import ROW
from emulator.errors import FeedrateError, RankError, SpecError
from emulator.files import write_whole
from emulator.launch.forkserver import Preload
from emulator.launch.mpirun import launch
from emulator.launch.scratch import scratch
from emulator.plugins.recorder.describe import main_loader, main_loaders, step_words
from emulator.plugins.recorder.job import WORKLOAD, Written, several, toml
from emulator.plugins.recorder.observation import Loader
from emulator.plugins.recorder.pattern import opens_of, side_files
from emulator.plugins.recorder.steps import Pace, settled
from emulator.plugins.recorder.watch import Watch
from emulator.record.out import read_failure, read_result
from emulator.record.steps import Steps, read_steps
from emulator.storage.folder import FolderStore
from emulator.sweep import ranks as sweep_ranks
from emulator.units import show_bytes

_SECONDS = 10.0
_FEW_STEPS, _MOST_STEPS = 10, 2000
_COLD, _WARM = 0.9, 0.1
"""Share of the job's bytes that came from storage: least for a cold replay, and most for a warm one."""
_BYTES_DIFFER = 0.1


def check(written: Written, watch: Watch) -> Written:
    """Return `written`, whose workload has the rates of job and replay, or why there are none."""
    described = written.described
    if described is None:
        return written
    workload = described.workload
    try:
        job = replace(workload.job, replay=_compared(written, workload, watch))
    except FeedrateError as error:
        job = replace(workload.job, unchecked=str(error))
    workload = replace(workload, job=job)
    write_whole(written.folder / WORKLOAD, toml(workload))
    return replace(written, described=replace(described, workload=workload))


def _compared(written: Written, workload: Workload, watch: Watch) -> ReplaySpec:
    """Return the rates. Raises SpecError if they cannot be compared, FeedrateError if the replay fails."""
    loader, job = main_loader(written.observation), written.pace
    if job is None or loader is None:
        raise SpecError("too few steps of the job are comparable with a replay", "record more steps")
    if several()[1] > 1:
        raise SpecError(
            "several recorders share the job", "record the launcher: feedrate record -- torchrun ..."
        )
    if find_spec("torch") is None:
        raise SpecError("a replay needs PyTorch", "pip install 'feedrate[torch]'")
    stored, ranks = _stored(loader, workload), len(main_loaders(written.observation))
    with scratch() as (folder, _), live.silent():
        data, out = folder / "data", folder / "out"
        files = _link(watch.files(loader.settings), data, workload)
        ahead, batch = workload.batches_ahead, workload.loader.batch_size
        epoch = files * workload.sample.samples_per_file // (ranks * batch)
        if epoch < 2:
            raise SpecError("the recorded files are too few for two steps", "raise --traced-steps")
        # Not more than the job's: the more samples have been read, the more does the page cache have.
        most = min(_MOST_STEPS, math.ceil(_SECONDS / job.seconds), loader.steps // ranks)
        steps = ahead + max(_FEW_STEPS, most)
        words = [
            "run", str(data), "--workload", str(written.folder / WORKLOAD), "--ranks", str(ranks),
            "--steps", str(min(steps, epoch) if epoch >= _FEW_STEPS + ahead else steps),
            "--cache", "cold" if stored else "warm", "--out", str(out), "--mismatched-dataset",
        ]  # fmt: skip
        if launch(ranks, words, out, Preload(rank_server, [sweep_ranks], "torch")):
            raise RankError("the replay failed", read_failure(out))
        (point,) = read_result(out).points
        rows = read_steps(out)
    replay = _pace(rows, ahead)
    if replay is None:
        raise SpecError("too few steps of the replay came after its prefetched ones", "record more steps")
    # A sample of the replay may be a part of the job's.
    samples = ranks * (job.samples or loader.settings.batch_size or 1)
    rates = ReplaySpec(
        samples_per_second=samples / job.seconds,
        waited=job.waited,
        replay_samples_per_second=samples / replay.seconds,
        replay_waited=replay.waited,
        amplification=stored and _amplification(loader, workload, stored, len(rows)),
        replay_amplification=point.read_amplification if stored else None,
        more_requests=_more_requests(loader, workload),
        kept=_kept(loader, workload),
        uncertain=_uncertain(loader, ranks, workload),
    )
    if not rates.trusted:
        flags = [flag.name for flag in point.flags if flag.name != "short"]
        rates = replace(rates, why=_why(written, loader, rates, rows, flags))
    return rates


def _stored(loader: Loader, workload: Workload) -> float | None:
    """Return the bytes from storage for each byte that a replay reads, or None if they came from memory.

    Raises SpecError if they came from both, or if it is not known.
    """
    if loader.batch_storage_bytes is None:
        raise SpecError("it is not known whether the job read from storage or from memory", "")
    # Not relative to the bytes of its calls: libraries read headers again, and page faults make no calls.
    stored = loader.batch_storage_bytes / workload.batch_bytes
    if _WARM < stored < _COLD:
        raise SpecError(
            f"{stored:.0%} of the job's bytes came from storage, the others from memory, unlike any replay's",
            "record when all of its data are in the page cache, or none",
        )
    return stored if stored >= _COLD else None


def _amplification(loader: Loader, workload: Workload, late: float, batches: int) -> float:
    """Return the bytes from storage for each byte of the first `batches` of the job; `late`: once untraced.

    A replay reads `batches`. Samples at random places that share pages or chunks get more of each other's
    bytes from memory the longer a job runs. Others do not, and their first batches also fill buffers.
    """
    asked, first = loader.asked_batches, loader.reads.storage_bytes
    apart = workload.sample.samples_per_file == 1 or workload.access.pattern != "random"
    if apart or not asked or not first:
        return late
    early = min(1.0, asked / batches)
    return early * first / asked / workload.batch_bytes + (1 - early) * late


def _more_requests(loader: Loader, workload: Workload) -> float:
    """Return the requests that a job makes by opening files again, for each request of its replay.

    A new open begins without read-ahead. Only of files that are read whole, which the replay opens once.
    """
    reads, sample = loader.reads, workload.sample
    if reads.sizes_only or sample.samples_per_file > 1 or workload.access.bytes_read:
        return 0.0
    again = opens_of(loader, 1 / workload.job.samples) - 1
    return max(0.0, again) / (1 + math.ceil(sample.bytes_mean / max(1, reads.readahead)))


def _kept(loader: Loader, workload: Workload) -> float:
    """Return the share of a replay's bytes that the job did not read once its calls were no longer traced."""
    # The counters of a process that is killed lag behind, which matters if few steps came later.
    if loader.batch_call_bytes is None or loader.reads.mapped or loader.share_read > 0.5:
        return 0.0
    return max(0.0, 1 - loader.batch_call_bytes / workload.batch_bytes)


def _uncertain(loader: Loader, ranks: int, workload: Workload) -> float:
    """Return the relative uncertainty of a sample's bytes, where each worker reads runs of samples.

    A worker has read up to a run more than it has delivered, half of one at a mean.
    """
    untraced = loader.steps - loader.seen_steps or loader.steps
    delivered = untraced / ranks * workload.loader.batch_size
    return max(1, loader.settings.workers) * workload.access.run_samples / 2 / max(1.0, delivered)


def _link(paths: Sequence[bytes], data: Path, workload: Workload) -> int:
    """Make a dataset of links to the files, and return their number. Raises FeedrateError."""
    data.mkdir()
    files: list[tuple[int, bytes]] = []
    for path in paths:
        with suppress(OSError):
            status = os.stat(path)  # noqa: PTH116  bytes
            if stat.S_ISREG(status.st_mode) and status.st_size:
                files.append((status.st_size, path))
    if not files:
        raise SpecError("the files that the job read are gone", "")
    if workload.sample.samples_per_file > 1:
        files.sort()
        del files[: side_files([size for size, _ in files])]
    for number, (_, path) in enumerate(files):
        (data / str(number)).symlink_to(os.fsdecode(path))
    sizes = np.array([size for size, _ in files])
    rows = np.zeros(len(sizes), ROW)
    rows["bytes"] = sizes
    manifest = Manifest(
        format=workload.sample.format,
        names=Listed.of(str(number) for number in range(len(sizes))),
        sizes=sizes,
        samples_per_file=workload.sample.samples_per_file,
    )
    write_manifest(FolderStore(data), manifest, rows)
    return len(sizes)


def _pace(rows: Steps, ahead: int) -> Pace | None:
    """Return the replay's pace, from a step's end to the next one's; None for too few steps.

    It is not taken from batch to batch, because a host that runs ahead takes the first ones at once.
    """
    seconds = waited = 0.0
    steps = 0
    for rank in np.unique(rows["rank"]):
        of_rank = rows[rows["rank"] == rank]
        of_rank = of_rank[np.lexsort((of_rank["step"], of_rank["epoch"]))]
        of_rank = of_rank[settled(of_rank["epoch"], of_rank["step"], ahead)]
        inside = np.flatnonzero(of_rank["epoch"][1:] == of_rank["epoch"][:-1]) + 1
        ends = of_rank["begin"] + durations(of_rank) - of_rank["barrier"]
        seconds += float((ends[inside] - ends[inside - 1]).sum())
        waited += float(of_rank["wait"][inside].sum())
        steps += len(inside)
    if not steps or not seconds:
        return None
    return Pace(seconds=seconds / steps, waited=min(1.0, waited / seconds), steps=steps)


def _why(written: Written, loader: Loader, rates: ReplaySpec, rows: Steps, flags: Sequence[str]) -> str:
    """Return the reasons in the recording why the replay is unlike the job."""
    step, reasons = written.observation.step, []
    if rates.more_requests > UNLIKE:
        reasons.append("the job opens a file several times for a sample, the replay once")
    if rates.uncertain > UNLIKE:
        more = math.ceil(loader.steps * rates.uncertain / UNLIKE / len(main_loaders(written.observation)))
        reasons.append(f"the job reads runs of samples, of which few were recorded: record {more} steps")
    if len(reasons) == sum(value > most for value, most in rates.differences) == 1:
        return reasons[0]  # nothing else is distrusted
    of_job = loader.reads.bytes / loader.asked_batches if loader.asked_batches else 0.0
    of_replay = float(rows["bytes"].mean())
    if of_job and abs(of_replay / of_job - 1) > _BYTES_DIFFER:
        reasons.append(f"the job reads {show_bytes(of_job)} for a step, the replay {show_bytes(of_replay)}")
    if loader.reads.mapped:
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
