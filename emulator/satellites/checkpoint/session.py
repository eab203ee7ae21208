"""What a checkpoint run is asked to do, decided before any rank starts; and how large it is."""

from __future__ import annotations

import os
import secrets
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, TypeVar

from emulator import __version__
from emulator.config.storage import Cache
from emulator.errors import DatasetError, FeedrateError, SpecError, StorageError
from emulator.files import sync_folder
from emulator.record.folder import check_out, claim_failure, prepare_out, write_result
from emulator.record.machine import cpu_seconds, describe_machine, describe_mount, utc_now
from emulator.record.result import Checkpoint, Flag, RunResult, Status
from emulator.run.comm import STEP_POLL, Comm, Quiet, agreed, guarded
from emulator.satellites.checkpoint import folder as place
from emulator.satellites.checkpoint.folder import FOLDER, Hands, Written, key_of, read_file, write_file
from emulator.satellites.checkpoint.model import (
    CheckpointModel,
    Shard,
    data_parallel,
    parameters,
    shards,
    total,
)
from emulator.storage.base import ReadStats
from emulator.storage.posix import PosixStorage, probe_direct
from emulator.units import show_bytes, show_rate, show_seconds

GIB = 2**30


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointJob:
    """One model, checkpointed on one storage."""

    folder: Path
    """Folder on the storage."""
    model: CheckpointModel
    subset: bool
    """True when the ranks are the first of those published, and write what those write."""
    scale: Fraction
    """Share of the real sizes."""
    cache: Cache
    """cold: what is read back comes from the storage; warm: the page cache may serve."""
    keep: bool
    """Leave the checkpoints of this run where they are."""
    shift: bool
    """Each rank reads what a rank of the next host wrote, so that no client's cache can serve."""
    out: Path
    command: tuple[str, ...]
    """The command line that repeats it."""

    @property
    def root(self) -> Path:
        """Folder with the checkpoints."""
        return self.folder / FOLDER

    def data(self, ranks: int) -> int:
        """Copies of the model. Raises SpecError when `ranks` ranks cannot hold it."""
        return data_parallel(self.model, ranks, self.subset)

    def shards(self, ranks: int, rank: int) -> tuple[Shard, ...]:
        """The files of `rank`. Raises SpecError."""
        return shards(self.model, self.data(ranks), rank, self.scale)

    def total(self, ranks: int) -> int:
        """Bytes of one checkpoint. Raises SpecError."""
        return total(self.model, self.data(ranks), ranks, self.scale)


def size_rows(models: list[CheckpointModel]) -> Iterator[tuple[str, ...]]:
    """A table of models, smallest first: what their shapes give, and what was published, as text."""
    yield ("MODEL", "PARAMETERS", "RANKS", "BYTES", "GiB", "PUBLISHED", "DIFFERS", "8 RANKS", "PUBLISHED")
    for model in sorted(models, key=lambda one: parameters(one.shape)):
        spread = model.parallelism
        whole, subset = (total(model, spread.data, ranks) for ranks in (spread.ranks, min(8, spread.ranks)))
        published = model.published
        yield (
            model.name, f"{parameters(model.shape) / 1e9:,.2f}e9",
            f"{spread.tensor}x{spread.pipeline}x{spread.data}, ZeRO {spread.zero}",
            show_bytes(whole), f"{whole / GIB:,.1f}",
            f"{published.size / GIB:,.0f}" if published else "",
            f"{whole / published.size - 1:+.1%}" if published else "",
            f"{subset / GIB:,.1f}", f"{published.subset / GIB:,.0f}" if published else "",
        )  # fmt: skip


def plan_lines(job: CheckpointJob, ranks: int) -> Iterator[str]:
    """What a run of `ranks` ranks would do. Raises SpecError."""
    io, size = job.model.io, job.total(ranks)
    files = [job.shards(ranks, rank) for rank in range(ranks)]
    sums = [sum(shard.size for shard in one) for one in files]
    yield f"model:       {job.model.name}, {job.model.title}, {parameters(job.model.shape):,} parameters"
    part = f", ranks 0 to {ranks - 1} of {job.model.parallelism.ranks}" if job.subset else ""
    yield f"ranks:       {ranks}{part}; data parallel {job.data(ranks)}, ZeRO {job.model.parallelism.zero}"
    scaled = "" if job.scale == 1 else f", scaled to {job.scale}"
    yield f"checkpoint:  {show_bytes(size)} in {sum(map(len, files))} files{scaled}"
    yield f"of a rank:   {show_bytes(min(sums))} to {show_bytes(max(sums))}"
    yield f"room needed: {show_bytes(size * io.writes)} in {job.folder} for {io.writes} checkpoints"
    yield f"then:        {io.reads} read back, {job.cache}; {io.pause:g} s after each"


# ---- What rank 0 keeps of a checkpoint run: every write and read; run.json after each.


MOST_RESIDENT = 0.01
"""Share of pages in memory before a cold read, above which it is flagged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What one rank did for one checkpoint."""

    size: int
    """Bytes."""
    seconds: float
    cpu_seconds: float
    pages_sampled: int = 0
    pages_resident: int = 0


def checkpoint_of(
    direction: Literal["write", "read"], number: int, hosts: int, began: float, reports: Sequence[Report],
    commit_seconds: float = 0.0,
) -> Checkpoint:  # fmt: skip
    """One write or read, from what its ranks did.

    MLPerf Storage v2.0, rules 2.2.3: duration is the maximum over the processes, throughput the minimum; a
    process's throughput is the size of the whole checkpoint / its own duration (DLIO 2.0, statscounter.py).
    With equal ranks that is ranks x the slowest rank's own rate.
    """
    size, pages = sum(one.size for one in reports), sum(one.pages_sampled for one in reports)
    slowest = max(range(len(reports)), key=lambda rank: reports[rank].seconds)
    seconds = reports[slowest].seconds
    return Checkpoint(
        direction=direction, number=number, ranks=len(reports), hosts=hosts, bytes=size, began=began,
        seconds=seconds, fastest_seconds=min(one.seconds for one in reports),
        bytes_per_second=size / seconds if seconds > 0 else 0.0, slowest_rank=slowest,
        commit_seconds=commit_seconds, cpu_seconds=sum(one.cpu_seconds for one in reports),
        resident_share=sum(one.pages_resident for one in reports) / pages if pages else None,
    )  # fmt: skip


@dataclass(slots=True)
class Book:
    """The record of one OUT folder, open for adding."""

    job: CheckpointJob
    hosts: list[str]
    """Host of every rank."""
    direct: bool
    """True when the file system takes O_DIRECT and the job wants it."""
    environment: dict[str, Any]
    found: list[Checkpoint] = field(default_factory=list)

    @classmethod
    def open(cls, job: CheckpointJob, hosts: list[str], direct: bool, force: bool) -> Book:
        """A new OUT. Raises SpecError, StorageError."""
        prepare_out(job.out, force)
        environment = {
            **describe_machine(),
            "ranks_started": len(hosts),
            "hosts": sorted(set(hosts)),
            "mount": describe_mount(job.folder),
        }
        book = cls(job, hosts, direct, environment)
        book.write("incomplete")
        return book

    def add(self, one: Checkpoint) -> None:
        """Raises StorageError."""
        self.found.append(one)
        self.write("incomplete")

    def write(self, status: Status) -> RunResult:
        """Raises StorageError."""
        job, ranks = self.job, len(self.hosts)
        result = RunResult(
            kind="checkpoint", status=status, version=__version__, created=utc_now(), command=job.command,
            reason="" if status == "complete" else "the run has not ended, or was killed",
            workload={
                **asdict(job.model), "title": f"Checkpoints: {job.model.title}",
                "parameters": parameters(job.model.shape), "subset": job.subset,
                "scale": str(job.scale), "data_parallel": job.data(ranks),
            },
            dataset={"path": str(job.root), "bytes": job.total(ranks)},
            storage={"cache": job.cache, "direct": self.direct},
            loader="checkpoint", environment=self.environment, checkpoints=tuple(self.found),
            flags=tuple(self._flags()),
        )  # fmt: skip
        write_result(job.out, result)
        return result

    def _flags(self) -> list[Flag]:
        found = [_departs(departures(self.job, len(self.hosts), len(set(self.hosts))))]
        found.append(_resident(self.found) if self.job.cache == "cold" else None)
        return [flag for flag in found if flag]


def departures(job: CheckpointJob, ranks: int, hosts: int) -> list[str]:
    """In what a run on `hosts` hosts departs from MLPerf Storage v2.0's rules for a CLOSED result."""
    io, spread = job.model.io, job.model.parallelism
    wanted = 8 if job.subset else spread.ranks
    said = {
        f"sizes are scaled to {job.scale}": job.scale != 1,
        f"{ranks} ranks instead of {wanted}": ranks != wanted,
        f"a subset on {hosts} hosts instead of one": job.subset and hosts > 1,
        f"{io.writes} writes and {io.reads} reads instead of 10 and 10": (io.writes, io.reads) != (10, 10),
        "what was read may come from the page cache": job.cache == "warm",
        "checkpoints were read more than once": 0 < io.writes < io.reads,
    }
    return [words for words, holds in said.items() if holds]


def _departs(found: list[str]) -> Flag | None:
    if not found:
        return None
    sentence = "Not by MLPerf Storage's rules: " + "; ".join(found) + "."
    return Flag(name="not-by-rules", value=float(len(found)), threshold=0.0, sentence=sentence)


def _resident(found: Sequence[Checkpoint]) -> Flag | None:
    share = max((one.resident_share or 0.0 for one in found), default=0.0)
    if share <= MOST_RESIDENT:
        return None
    return Flag(
        name="page-cache", value=share, threshold=MOST_RESIDENT,
        sentence=f"{share:.0%} of the sampled pages were in this host's memory before they were read back.",
    )  # fmt: skip


# ---- All ranks write checkpoints, then read them back; rank 0 makes each complete when all are done.


Say = Callable[[str], None]
Value = TypeVar("Value")


def check(job: CheckpointJob, ranks: int, force: bool) -> None:
    """What can be seen before anything is written. Raises SpecError, StorageError."""
    size = job.total(ranks)
    check_out(job.out, force)
    if not job.folder.is_dir():
        raise StorageError(f"there is no folder {job.folder}", "mount the storage, or check the path")
    needed, free = size * job.model.io.writes, shutil.disk_usage(job.folder).free
    if needed > free:
        raise SpecError(
            f"{job.model.io.writes} checkpoints need {show_bytes(needed)}, but {job.folder} has "
            f"{show_bytes(free)} free",
            "choose fewer --writes, or a --scale below 1",
        )


def sweep_up(job: CheckpointJob) -> list[str]:
    """Remove what ranks that were killed left unfinished; what was done, in words. Never raises."""
    try:
        with place.locked(job.root):
            gone = [f"removed {name}, which was unfinished" for name in place.clean(job.root)]
            kept = place.complete(job.root)
        place.leave(job.root)
    except FeedrateError as error:
        return [str(error)]
    found = "1 complete checkpoint is" if len(kept) == 1 else f"{len(kept)} complete checkpoints are"
    return [*gone, *([f"{found} in {job.root}"] if kept else [])]


def measure(job: CheckpointJob, world: Comm, *, force: bool, say: Say) -> RunResult | None:
    """Write and read as the job says, write OUT, and return the result on rank 0 (None elsewhere).

    Collective over `world`: when a rank fails, every rank ends and the first one that failed says why.
    """
    agreed(world, lambda: check(job, world.size, force) if world.rank == 0 else None)
    with guarded(world, job.out), ExitStack() as stack:
        if world.rank == 0:  # a run that is refused leaves nothing behind
            agreed(world, lambda: stack.enter_context(place.locked(job.root)))
        else:
            agreed(world, lambda: None)
        hosts = world.allgather(socket.gethostname())
        direct = agreed(world, lambda: job.model.io.direct and probe_direct(job.folder))
        book = agreed(world, lambda: Book.open(job, hosts, direct, force) if world.rank == 0 else None)
        io, stalled = job.model.io, _given_up(job, world)
        hands = stack.enter_context(Hands(io.workers, io.block_bytes, io.stall_timeout, stalled))
        _Session(job, world, hosts, hands, direct, book, say).run()
        return book.write("complete") if book else None


def _given_up(job: CheckpointJob, world: Comm) -> Callable[[StorageError], None]:
    """What ends all ranks when this one's storage hangs: no thread of it can be waited for."""

    def end(error: StorageError) -> None:
        if claim_failure(job.out, str(error)):
            print(f"feedrate: error: rank {world.rank}: {error}", file=sys.stderr, flush=True)
        try:
            world.abort(error.exit_code)
        finally:
            os._exit(error.exit_code)

    return end


@dataclass
class _Session:
    """The world of ranks over the checkpoints; what they measured is in the book of rank 0."""

    job: CheckpointJob
    world: Comm
    hosts: list[str]
    """Host of every rank."""
    hands: Hands
    direct: bool
    book: Book | None
    """On rank 0 only."""
    say: Say
    written: list[int] = field(default_factory=list)
    """Numbers of the checkpoints of this run."""

    def __post_init__(self) -> None:
        self._begin = time.monotonic()
        self._seed: int = self.world.bcast(secrets.randbits(62))

    def run(self) -> None:
        io = self.job.model.io
        self._on_first(self._clean)
        known: list[int] = self._on_first(lambda: place.complete(self.job.root)) or []
        known = self.world.bcast(known)
        first = known[-1] + 1 if known else 0
        try:
            for number in range(first, first + io.writes):
                self._pause(number > first)
                self._write(number)
            places = self.written or known
            for turn in range(io.reads):
                self._pause(bool(turn or self.written))
                self._read(self._choose(places, turn))
        finally:
            if not self.job.keep and self.book:
                for number in self.written:
                    place.remove(self.job.root / place.name_of(number))
                place.leave(self.job.root)

    def _pause(self, wanted: bool) -> None:
        if wanted:
            time.sleep(self.job.model.io.pause)

    def _clean(self) -> None:
        for name in place.clean(self.job.root):
            self.say(f"removed {name}: an earlier run left it unfinished")

    def _choose(self, known: list[int], turn: int) -> int:
        if not known:
            raise SpecError(
                f"there is no checkpoint in {self.job.root}", "write some with --writes and --keep"
            )
        return known[turn % len(known)]

    def _write(self, number: int) -> None:
        job, world = self.job, self.world
        run = f"{self._seed:016x}"[-8:]
        part: Path = world.bcast(self._on_first(lambda: place.begin(job.root, number, run)))
        with self._removed_when_failed(part):
            files, report, began = self._timed(lambda: self._write_files(part, number))
            told: list[tuple[tuple[Written, ...], Report]] = world.gather((files, report))
            commit = self._on_first(lambda: self._commit(part, number, [one for one, _ in told]))
        self.written.append(number)
        self._keep("write", number, began, [one for _, one in told], commit or 0.0)

    def _write_files(self, part: Path, number: int) -> tuple[tuple[Written, ...], int, ReadStats]:
        job, rank = self.job, self.world.rank
        files = tuple(
            write_file(part, shard, key_of(self._seed, number, rank, shard.name), self.hands, self.direct)
            for shard in job.shards(self.world.size, rank)
        )
        sync_folder(part)
        return files, sum(one.size for one in files), ReadStats()

    def _commit(self, part: Path, number: int, files: list[tuple[Written, ...]]) -> float:
        begin = time.monotonic()
        marker = place.Marker(
            model=self.job.model.name, ranks=self.world.size, data=self.job.data(self.world.size),
            scale=str(self.job.scale), seed=self._seed, files=tuple(files),
        )  # fmt: skip
        place.commit(part, number, marker)
        return time.monotonic() - begin

    def _read(self, number: int) -> None:
        marker = self._all(lambda: self._marker(number))
        _, report, began = self._timed(lambda: self._read_files(number, marker))
        self._keep("read", number, began, self.world.gather(report), 0.0)

    def _marker(self, number: int) -> place.Marker:
        marker = place.read_marker(self.job.root, number)
        ranks = self.world.size
        mine = (self.job.model.name, ranks, self.job.data(ranks), str(self.job.scale), self.job.total(ranks))
        if mine != (marker.model, marker.ranks, marker.data, marker.scale, marker.size):
            raise SpecError(
                f"{place.name_of(number)} in {self.job.root} is of {marker.model} by {marker.ranks} ranks, "
                f"{show_bytes(marker.size)}",
                "read it with the options that it was written with",
            )
        if len(marker.files) != ranks:
            raise DatasetError(f"{place.name_of(number)} lacks the files of a rank", "it is damaged")
        return marker

    def _read_files(self, number: int, marker: place.Marker) -> tuple[None, int, ReadStats]:
        stats = ReadStats()
        direct = self.direct and self.job.cache == "cold"
        storage = PosixStorage(self.job.root, direct=direct, cache=self.job.cache, stats=stats)
        files = marker.files[self._reads_of()]
        for written in files:
            read_file(storage, place.name_of(number), written, self.hands)
        return None, sum(one.size for one in files), stats

    def _reads_of(self) -> int:
        """The rank whose files this rank reads."""
        shift = self.hosts.count(self.hosts[0]) if self.job.shift else 0
        return (self.world.rank + shift) % self.world.size

    def _timed(self, action: Callable[[], tuple[Value, int, ReadStats]]) -> tuple[Value, Report, float]:
        """`action()` on all ranks from a common start on, what it cost here, and when it began."""
        self.world.barrier(STEP_POLL)
        begin, cpu = time.monotonic(), cpu_seconds()

        def timed() -> tuple[Value, Report, float]:
            value, size, stats = action()
            seconds, pages = time.monotonic() - begin, stats.snapshot()
            report = Report(
                size=size, seconds=seconds, cpu_seconds=cpu_seconds() - cpu,
                pages_sampled=pages.pages_sampled, pages_resident=pages.pages_resident,
            )  # fmt: skip
            return value, report, begin - self._begin

        return self._all(timed)

    def _keep(self, what: str, number: int, began: float, reports: list[Report], commit: float) -> None:
        if not self.book:
            return
        hosts = len(set(self.book.hosts))
        one = checkpoint_of("write" if what == "write" else "read", number, hosts, began, reports, commit)
        self._on_book(one)

    def _on_book(self, one: Checkpoint) -> None:
        assert self.book is not None
        self.book.add(one)
        self.say(
            f"{one.direction:5} {place.name_of(one.number)}: {show_bytes(one.bytes)} in "
            f"{show_seconds(one.seconds)}, {show_rate(one.bytes_per_second)}"
        )

    def _on_first(self, action: Callable[[], Value]) -> Value | None:
        """`action()` on rank 0; its error ends all ranks."""
        return self._all(lambda: action() if self.world.rank == 0 else None)

    def _all(self, action: Callable[[], Value]) -> Value:
        """`action()` on every rank; an error is said once, kept in OUT, and ends all of them."""

        def told() -> Value:
            try:
                return action()
            except FeedrateError as error:
                claim_failure(self.job.out, str(error))
                raise

        return agreed(self.world, told)

    @contextmanager
    def _removed_when_failed(self, part: Path) -> Iterator[None]:
        """Nothing stays of a checkpoint that could not be written. All ranks have stopped by then."""
        try:
            yield
        except Quiet:
            if self.world.rank == 0:
                place.remove(part)
            raise
