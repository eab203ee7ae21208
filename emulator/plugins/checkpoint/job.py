"""A checkpoint job: its options, its plan, its checks before anything is written, and its empty result."""

from __future__ import annotations

import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path

from emulator import live
from emulator.config.checkpoint import CheckpointModel, Shard, data_parallel, parameters, shards, total
from emulator.errors import SpecError, StorageError
from emulator.launch.launched import started_by_mpi
from emulator.plugins.checkpoint.files import FOLDER
from emulator.record.machine import describe_machine, describe_mount
from emulator.record.out import check_out
from emulator.record.result import Checkpoint, Flag, RunResult, new_result
from emulator.run.preflight import NO_RULES, Rules
from emulator.units import show_bytes

HOST_RANKS = 8
"""Ranks of a subset: those of one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointJob:
    """A model to be checkpointed in a folder."""

    folder: Path
    """Folder on the storage."""
    model: CheckpointModel
    subset: bool
    """True when the ranks are the first of those published, and write what those write."""
    scale: Fraction
    """Share of the real sizes."""
    keep: bool
    """Leave the checkpoints of this run where they are."""
    shift: bool
    """Each rank reads what a rank of the next host wrote, so that no client's cache can serve."""
    out: Path
    command: tuple[str, ...]
    """The command line that repeats it."""
    label: str = ""
    """A name for the result, for people."""
    rules: Rules = NO_RULES
    """The rules by which the result is to be valid."""

    @property
    def root(self) -> Path:
        """Folder with the checkpoints."""
        return self.folder / FOLDER

    def data(self, ranks: int) -> int:
        """Return the copies of the model. Raises SpecError when `ranks` ranks cannot hold it."""
        return data_parallel(self.model, ranks, self.subset)

    def shards(self, ranks: int, rank: int) -> tuple[Shard, ...]:
        """Return the files of `rank`. Raises SpecError."""
        return shards(self.model, self.data(ranks), rank, self.scale)

    def total(self, ranks: int) -> int:
        """Return the bytes of one checkpoint. Raises SpecError."""
        return total(self.model, self.data(ranks), ranks, self.scale)

    @property
    def usual_ranks(self) -> int:
        """Ranks that are started unless -n says otherwise."""
        published = self.model.parallelism.ranks
        return min(HOST_RANKS, published) if self.subset else published

    def lines(self, ranks: int) -> Iterator[str]:
        """Yield the plan of a run of `ranks` ranks, for people. Raises SpecError."""
        model, io, size = self.model, self.model.io, self.total(ranks)
        files = [self.shards(ranks, rank) for rank in range(ranks)]
        sums = [sum(shard.size for shard in shards) for shards in files]
        yield f"model:       {model.name}, {model.title}, {parameters(model.shape):,} parameters"
        part = f", ranks 0 to {ranks - 1} of {model.parallelism.ranks}" if self.subset else ""
        yield f"ranks:       {ranks}{part}; data parallel {self.data(ranks)}, ZeRO {model.parallelism.zero}"
        scaled = "" if self.scale == 1 else f", scaled to {self.scale}"
        yield f"checkpoint:  {show_bytes(size)} in {sum(map(len, files))} files{scaled}"
        yield f"of a rank:   {show_bytes(min(sums))} to {show_bytes(max(sums))}"
        yield f"room needed: {show_bytes(size * io.writes)} in {self.folder} for {io.writes} checkpoints"
        yield f"then:        {io.reads} read back, cold; {io.pause:g} s after each"


def check(job: CheckpointJob, ranks: int, force: bool) -> None:
    """Refuse what cannot work, before anything is written. Raises SpecError, StorageError."""
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


def empty_result(
    job: CheckpointJob, hosts: Sequence[str], memory: Mapping[str, int], direct: bool
) -> RunResult:
    """Return the result without checkpoints. Raises SpecError.

    `hosts` has the host of every rank, `memory` each one's bytes.
    """
    departed = departures(job, len(hosts), len(set(hosts)))
    sentence = "Not by MLPerf Storage's rules: " + "; ".join(departed) + "."
    flag = Flag(name="not-by-rules", value=float(len(departed)), threshold=0.0, sentence=sentence)
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
            "data_parallel": job.data(len(hosts)),
        },
        dataset={"path": str(job.root), "bytes": job.total(len(hosts))},
        storage={"cache": "cold", "direct": direct},
        loader="checkpoint",
        environment={
            **describe_machine(),
            "ranks_started": len(hosts),
            "folder": str(Path.cwd()),
            "mpirun": started_by_mpi() and not live.launched(),
            "hosts": sorted(set(hosts)),
            "memory_of_hosts": dict(memory),
            "mount": describe_mount(job.folder),
            "out_mount": describe_mount(job.out),
        },
        flags=(flag,) if departed else (),
    )


def planned(job: CheckpointJob, hosts: Sequence[str], memory: Mapping[str, int]) -> RunResult:
    """Return the result to be, with NaN for what will be measured. Raises SpecError.

    `hosts` has the host of every rank, `memory` each one's bytes.
    """
    io, unknown = job.model.io, math.nan
    made = Checkpoint(
        direction="write",
        number=0,
        ranks=len(hosts),
        hosts=len(set(hosts)),
        bytes=job.total(len(hosts)),
        began=unknown,
        seconds=unknown,
        fastest_seconds=unknown,
        bytes_per_second=unknown,
        slowest_rank=0,
    )
    empty = empty_result(job, hosts, memory, direct=False)
    return replace(empty, checkpoints=(made,) * io.writes + (replace(made, direction="read"),) * io.reads)


def departures(job: CheckpointJob, ranks: int, hosts: int) -> list[str]:
    """Return how a run on `hosts` hosts departs from MLPerf Storage v2.0's rules for CLOSED, as sentences."""
    io, spread = job.model.io, job.model.parallelism
    wanted = HOST_RANKS if job.subset else spread.ranks
    sentences = {
        f"sizes are scaled to {job.scale}": job.scale != 1,
        f"{ranks} ranks instead of {wanted}": ranks != wanted,
        f"a subset on {hosts} hosts instead of one": job.subset and hosts > 1,
        f"{io.writes} writes and {io.reads} reads instead of 10 and 10": (io.writes, io.reads) != (10, 10),
        "checkpoints were read more than once": 0 < io.writes < io.reads,
    }
    return [sentence for sentence, holds in sentences.items() if holds]
