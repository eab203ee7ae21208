"""A checkpoint job: its options, its plan, its checks, and its empty result."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Literal

from emulator.config.checkpoint import CheckpointModel, Shard, data_parallel, parameters, shards, total
from emulator.errors import SpecError
from emulator.files import require_folder, require_room
from emulator.plugins.checkpoint.files import FOLDER
from emulator.record.machine import describe_mount
from emulator.record.out import check_out
from emulator.record.result import Checkpoint, RunResult, new_result
from emulator.registry import STORES
from emulator.run.environment import describe_run
from emulator.run.preflight import NO_RULES, Rules
from emulator.units import show_bytes

HOST_RANKS = 8
"""Ranks of a subset: those of one host."""
Direction = Literal["write", "read"]


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointJob:
    """A model to checkpoint in a folder."""

    folder: Path
    model: CheckpointModel
    subset: bool = False
    """True if the ranks are only the first ranks of the published job, with their shards."""
    scale: Fraction = Fraction(1)
    keep: bool = False
    shift: bool = False
    """Have each rank read the files of a rank of the next host, so that no client cache can serve them."""
    out: Path
    command: tuple[str, ...] = ()
    label: str = ""
    accelerator: str = ""
    """Name of the emulated accelerator, which MLPerf's rules ask for; its memory must hold the model."""
    rules: Rules = NO_RULES

    @property
    def root(self) -> Path:
        return self.folder / FOLDER

    def data(self, ranks: int) -> int:
        """Return the number of copies of the model. Raises SpecError if `ranks` ranks cannot hold it."""
        return data_parallel(self.model, ranks, self.subset)

    def shards(self, ranks: int, rank: int) -> tuple[Shard, ...]:
        """Return the files of `rank`. Raises SpecError."""
        return shards(self.model, self.data(ranks), rank, self.scale)

    def total(self, ranks: int) -> int:
        """Return the bytes of one checkpoint. Raises SpecError."""
        return total(self.model, self.data(ranks), ranks, self.scale)

    @property
    def usual_ranks(self) -> int:
        published = self.model.parallelism.ranks
        return min(HOST_RANKS, published) if self.subset else published

    def lines(self, ranks: int) -> Iterator[str]:
        """Yield the plan of a run of `ranks` ranks as lines. Raises SpecError."""
        model, io, size = self.model, self.model.io, self.total(ranks)
        files = [self.shards(ranks, rank) for rank in range(ranks)]
        sizes = [sum(shard.size for shard in shards) for shards in files]
        part = f", ranks 0 to {ranks - 1} of {model.parallelism.ranks}" if self.subset else ""
        scaled = "" if self.scale == 1 else f", scaled to {self.scale}"
        yield f"model:       {model.name}, {model.title}, {parameters(model.shape):,} parameters"
        yield f"ranks:       {ranks}{part}; data parallel {self.data(ranks)}, ZeRO {model.parallelism.zero}"
        yield f"checkpoint:  {show_bytes(size)} in {sum(map(len, files))} files{scaled}"
        yield f"of a rank:   {show_bytes(min(sizes))} to {show_bytes(max(sizes))}"
        # Each stays until the run ends, to be read back.
        yield f"room needed: {show_bytes(size * io.writes)} in {self.folder} for {io.writes} checkpoints"
        yield f"then:        {io.reads} read back, cold; {io.pause:g} s after each"


def check(job: CheckpointJob, ranks: int, force: bool) -> None:
    """Raise SpecError or StorageError if the job cannot work, before ranks start."""
    scheme = str(job.folder).partition(":/")[0]
    if scheme in STORES:
        raise SpecError(f"checkpoints are files, not objects of {scheme}://", "name a mounted folder")
    check_out(job.out, force)
    job.total(ranks)  # the ranks may not fill whole copies of the model
    require_folder(job.folder)  # its free space is asked when leftovers are gone


def require_room_for(job: CheckpointJob, ranks: int) -> None:
    """Raise SpecError if the checkpoints that the job writes do not fit. Call it when leftovers are gone."""
    writes = job.model.io.writes
    hint = "choose fewer --writes, or a --scale below 1"
    require_room(job.folder, writes * job.total(ranks), f"{writes} checkpoints", hint)


def empty_result(
    job: CheckpointJob, hosts: Sequence[str], memory: Mapping[str, int], direct: bool
) -> RunResult:
    """Return the result without checkpoints. Raises SpecError.

    `hosts` has the host of every rank, `memory` the bytes of each host.
    """
    return new_result(
        "checkpoint",
        command=job.command,
        label=job.label,
        workload={
            **asdict(job.model),
            "title": f"Checkpoints: {job.model.title}",
            "parameters": parameters(job.model.shape),
            "subset": job.subset,
            "scale": str(job.scale),
            "accelerator": {"name": job.accelerator},
            "data_parallel": job.data(len(hosts)),
        },
        dataset={"path": str(job.root), "bytes": job.total(len(hosts))},
        storage={"cache": "cold", "direct": direct},
        loader="checkpoint",
        environment={**describe_run(hosts, memory, job.out), "mount": describe_mount(job.folder)},
    )


def planned(job: CheckpointJob, hosts: Sequence[str], memory: Mapping[str, int]) -> RunResult:
    """Return `empty_result` with NaN for what is measured. Raises SpecError."""
    ranks = len(hosts)
    reports = [
        Report(size=sum(shard.size for shard in job.shards(ranks, rank)), seconds=math.nan)
        for rank in range(ranks)
    ]
    write = checkpoint_of("write", 0, len(set(hosts)), math.nan, reports)
    read = replace(write, direction="read")
    io, empty = job.model.io, empty_result(job, hosts, memory, direct=False)
    return replace(empty, checkpoints=(write,) * io.writes + (read,) * io.reads)


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """One rank's part of one write or read."""

    size: int
    """Bytes that the rank wrote or read."""
    seconds: float
    cpu_seconds: float = 0.0
    pages_sampled: int = 0
    pages_resident: int = 0


def checkpoint_of(
    direction: Direction,
    number: int,
    hosts: int,
    began: float,
    reports: Sequence[Report],
    commit_seconds: float = 0.0,
) -> Checkpoint:
    """Combine the ranks' reports of one write or read.

    MLPerf Storage v2.0, rules 2.2.3: duration is the maximum over the processes, throughput the minimum; the
    throughput of a process is the size of the whole checkpoint / its duration (DLIO 2.0, statscounter.py).
    For equal ranks that is ranks x the rate of the slowest rank.
    """
    size = sum(report.size for report in reports)
    pages = sum(report.pages_sampled for report in reports)
    resident = sum(report.pages_resident for report in reports)
    slowest = max(range(len(reports)), key=lambda rank: reports[rank].seconds)
    seconds = reports[slowest].seconds
    return Checkpoint(
        direction=direction,
        number=number,
        ranks=len(reports),
        hosts=hosts,
        bytes=size,
        began=began,
        seconds=seconds,
        fastest_seconds=min(report.seconds for report in reports),
        bytes_per_second=size / seconds if seconds else 0.0,
        slowest_rank=slowest,
        commit_seconds=commit_seconds,
        cpu_seconds=sum(report.cpu_seconds for report in reports),
        resident_share=resident / pages if pages else None,
    )
