"""What rank 0 keeps of a checkpoint run: every write and read; run.json after each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from emulator import __version__
from emulator.checkpoint.job import CheckpointJob
from emulator.checkpoint.shards import parameters
from emulator.record.machine import describe_machine, describe_mount, utc_now
from emulator.record.result import Checkpoint, Flag, RunResult, Status
from emulator.record.store import prepare_out, write_result

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
