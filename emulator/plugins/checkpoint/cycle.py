"""Start the ranks of a checkpoint job, of which rank 0 commits checkpoints and writes the result."""

from __future__ import annotations

import secrets
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeVar

from emulator import live, notes
from emulator.errors import DatasetError, FeedrateError, SpecError, StorageError
from emulator.files import sync_folder
from emulator.launch.comm import STEP_POLL, Comm, Quiet, agreed, entered, guarded
from emulator.launch.launched import rank_hint, started_by_mpi
from emulator.launch.watch import briefly
from emulator.launch.world import on_ranks
from emulator.live import Now
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.files import ShardIO, WrittenFile, key_of, read_shard, write_shard
from emulator.plugins.checkpoint.job import (
    CheckpointJob,
    Direction,
    Report,
    check,
    checkpoint_of,
    empty_result,
    planned,
    require_room_for,
)
from emulator.record.out import ResultFolder, read_result
from emulator.record.result import Flag, RunResult
from emulator.run.environment import hosts_of
from emulator.storage.counts import ReadStats
from emulator.storage.posix import PosixStorage, probe_direct
from emulator.units import show_bytes, show_rate, show_seconds

Value = TypeVar("Value")


def run_checkpoint(job: CheckpointJob, ranks: int | None = None, *, force: bool = False) -> RunResult | None:
    """Run `job` on `ranks` ranks (None for as many as the model has) and return its result.

    Under mpirun, its ranks do so, and those after the first return None. Raises FeedrateError before the
    start, Quiet after an error that a rank has reported.
    """

    def work(comm: Comm) -> int:
        measure(job, comm, force=force)
        return 0

    if not started_by_mpi():
        check(job, ranks or job.usual_ranks, force)
    status = on_ranks(work, ranks, job.usual_ranks, job.out)
    if not status:
        return None if rank_hint() else read_result(job.out)
    if status != SpecError.exit_code:  # a refused run has left nothing
        storage_failed = status == StorageError.exit_code  # then it may hang
        briefly(lambda: sweep_up(job), 1.0 if storage_failed else notes.timeout())
    raise Quiet(status)


def sweep_up(job: CheckpointJob) -> None:
    """Remove what killed ranks have left, and say so on stderr. Never raises."""
    try:
        with place.locked(job.root):
            for name in place.clean(job.root):
                print(f"feedrate: removed {name}, which a run that died had left", file=sys.stderr)
    except FeedrateError as error:
        print(f"feedrate: {error}", file=sys.stderr)


def measure(job: CheckpointJob, world: Comm, *, force: bool = False) -> RunResult | None:
    """Write and read the checkpoints of `job`, write OUT, and return the result on rank 0, None on others.

    Collective over `world`: when a rank fails, it reports why, and all ranks end.
    """
    job = replace(job, out=world.bcast(job.out))  # its default has the time of rank 0
    first = world.rank == 0
    _on_first(world, lambda: check(job, world.size, force))
    hosts, memory = hosts_of(world)
    _on_first(world, lambda: job.rules.require(planned(job, hosts, memory)))
    # Lock the folder of checkpoints before OUT is made, so that a refused run leaves nothing.
    with guarded(world, job.out), entered(world, partial(place.locked, job.root) if first else None):
        _on_first(world, lambda: _make_room(job, world.size))
        direct = agreed(world, lambda: job.model.io.direct and probe_direct(job.folder))

        def create() -> ResultFolder:
            empty = empty_result(job, hosts, memory, direct)
            return ResultFolder.create(job.out, empty, force=force)

        io = job.model.io
        with (
            entered(world, create if first else None) as record,
            ShardIO(io.workers, io.block_bytes) as shard_io,
        ):
            session = _Session(job, world, hosts, shard_io, direct, record)
            with (
                _cleaned(job.root) if first else nullcontext(),
                live.telling(session.now) if first else nullcontext(),
            ):
                session.run()
            return record.complete() if record else None


def _on_first(world: Comm, action: Callable[[], Value], out: Path | None = None) -> Value | None:
    """Return `action()` on rank 0, None on others; its error ends all ranks."""
    return agreed(world, lambda: action() if world.rank == 0 else None, out)


def _make_room(job: CheckpointJob, ranks: int) -> None:
    """Remove what runs that died have left, and check the free space. Raises SpecError, StorageError."""
    for name in place.clean(job.root):
        live.say(f"removed {name}, which a run that died had left")
    require_room_for(job, ranks)


@contextmanager
def _cleaned(root: Path) -> Iterator[None]:
    """Remove what is not to be kept when the body ends. Raises StorageError."""
    try:
        yield
    except BaseException as error:
        # Others may still write to an unfinished checkpoint, unless all ranks have agreed to end.
        with suppress(StorageError):  # the storage has failed; the next run tries again
            place.clean(root, unfinished_too=isinstance(error, Quiet))
        raise
    place.clean(root)


@dataclass
class _Session:
    """One rank's state while a job runs."""

    job: CheckpointJob
    world: Comm
    hosts: list[str]
    io: ShardIO
    direct: bool
    record: ResultFolder | None
    written: list[int] = field(default_factory=list)
    """Numbers of the checkpoints of this run."""
    doing: str = "starting"
    part: int = 0
    """Number of the present write or read, from 1."""
    started: float = field(default_factory=time.monotonic)
    """Clock at the start, in seconds."""

    def now(self) -> Now:
        """Return the progress of rank 0. Another thread calls this."""
        parts, seconds = self.job.model.io.writes + self.job.model.io.reads, time.monotonic() - self.started
        done = self.part - 1
        left = seconds / done * (parts - done) if done > 0 else None
        return Now(
            verb="checkpoint",
            doing=self.doing,
            unit="checkpoint",
            part=self.part,
            parts=parts,
            share=live.share_done(seconds, left),
            seconds=seconds,
            eta_seconds=left,
            bytes_per_second=self.io.done * self.world.size / seconds if seconds else None,
        )

    def _take_turn(self, direction: Direction, number: int) -> None:
        """Record for `now` that the next write or read begins."""
        self.part += 1
        self.doing = f"{direction} {place.folder_name(number)}, {show_bytes(self.job.total(self.world.size))}"

    def run(self) -> None:
        job, io = self.job, self.job.model.io
        # Of this run alone, so that no storage has its bytes already.
        self._seed: int = self.world.bcast(secrets.randbits(62))
        present: list[int] = self.world.bcast(self._on_first(lambda: place.complete(job.root)))
        # Those that earlier runs kept stay: numbers go on after them.
        first = present[-1] + 1 if present else 0
        for number in range(first, first + io.writes):
            if number > first:
                time.sleep(io.pause)
            self._write(number)
        readable = self.written or present
        if io.reads and not readable:
            raise SpecError(f"there is no checkpoint in {job.root}", "write some with --writes and --keep")
        for turn in range(io.reads):
            if turn or self.written:
                time.sleep(io.pause)
            self._read(readable[turn % len(readable)])

    def _write(self, number: int) -> None:
        job, world = self.job, self.world
        self._take_turn("write", number)
        run = f"{self._seed:016x}"[-8:]
        part: Path = world.bcast(self._on_first(lambda: place.begin(job.root, number, run)))

        def write(stats: ReadStats) -> tuple[WrittenFile, ...]:
            files = []
            for shard in job.shards(world.size, world.rank):
                key = key_of(self._seed, number, world.rank, shard.name)
                files.append(write_shard(part, shard, key, self.io, self.direct))
            sync_folder(part)  # a file may be durable, and its name not
            return tuple(files)

        files, report, began = self._timed(write)
        gathered: list[tuple[tuple[WrittenFile, ...], Report]] = world.gather((files, report))

        def commit() -> float:
            begin = time.monotonic()
            marker = place.Marker(
                model=job.model.name,
                ranks=world.size,
                data=job.data(world.size),
                scale=str(job.scale),
                seed=self._seed,
                files=tuple(files for files, _ in gathered),
                keep=job.keep,
            )
            place.commit(part, number, marker)
            return time.monotonic() - begin

        commit_seconds = self._on_first(commit)
        self.written.append(number)
        self._record("write", number, began, [report for _, report in gathered], commit_seconds or 0.0)

    def _read(self, number: int) -> None:
        job, world = self.job, self.world
        self._take_turn("read", number)
        marker = agreed(world, lambda: self._marker(number), job.out)
        # With --shift each rank reads the files of the rank that is one host's ranks after it.
        shift = self.hosts.count(self.hosts[0]) if job.shift else 0
        files = marker.files[(world.rank + shift) % world.size]

        def read(stats: ReadStats) -> tuple[WrittenFile, ...]:
            storage = PosixStorage(job.root, direct=self.direct, cache="cold", stats=stats)
            for written in files:
                read_shard(storage, place.folder_name(number), written, self.io)
            return files

        _, report, began = self._timed(read)
        self._record("read", number, began, world.gather(report), 0.0)

    def _marker(self, number: int) -> place.Marker:
        job, ranks = self.job, self.world.size
        marker = place.read_marker(job.root, number)
        expected = (job.model.name, ranks, job.data(ranks), str(job.scale), job.total(ranks))
        if expected != (marker.model, marker.ranks, marker.data, marker.scale, marker.size):
            kind = f"{marker.model} by {marker.ranks} ranks, {show_bytes(marker.size)}"
            what = f"{place.folder_name(number)} in {job.root} is of {kind}"
            raise SpecError(what, "read it with the options that it was written with")
        if len(marker.files) != ranks:
            raise DatasetError(f"{place.folder_name(number)} lacks the files of a rank", "it is damaged")
        return marker

    def _timed(
        self, action: Callable[[ReadStats], tuple[WrittenFile, ...]]
    ) -> tuple[tuple[WrittenFile, ...], Report, float]:
        """Run `action` on all ranks at once; return its files, its report for this rank, and its start."""
        # All ranks begin at once, as they do when a training reaches its checkpoint.
        self.world.barrier(STEP_POLL)
        begin, cpu = time.monotonic(), time.process_time()

        def timed() -> tuple[tuple[WrittenFile, ...], Report, float]:
            stats = ReadStats()
            files = action(stats)
            seconds, pages = time.monotonic() - begin, stats.snapshot()
            report = Report(
                size=sum(file.size for file in files),
                seconds=seconds,
                cpu_seconds=time.process_time() - cpu,
                pages_sampled=pages.pages_sampled,
                pages_resident=pages.pages_resident,
            )
            return files, report, begin - self.started

        return agreed(self.world, timed, self.job.out)

    def _record(
        self, direction: Direction, number: int, began: float, reports: list[Report], commit_seconds: float
    ) -> None:
        """Add a write or a read to the result, on rank 0, and say it."""
        if not self.record:
            return
        checkpoint = checkpoint_of(direction, number, len(set(self.hosts)), began, reports, commit_seconds)
        checkpoints = (*self.record.result.checkpoints, checkpoint)
        resident = max(entry.resident_share or 0.0 for entry in checkpoints)
        flag = Flag(
            name="page-cache",
            value=resident,
            threshold=0.01,
            sentence=f"{resident:.0%} of the sampled pages were in this host's memory before the read.",
        )
        flags = (flag,) if resident > flag.threshold else ()
        self.record.update(checkpoints=checkpoints, flags=flags)
        live.say(
            f"{direction:5} {place.folder_name(number)}: {show_bytes(checkpoint.bytes)} in "
            f"{show_seconds(checkpoint.seconds)}, {show_rate(checkpoint.bytes_per_second)}"
        )

    def _on_first(self, action: Callable[[], Value]) -> Value | None:
        return _on_first(self.world, action, self.job.out)
