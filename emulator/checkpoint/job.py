"""What a checkpoint run is asked to do, decided before any rank starts; and how large it is."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from emulator.checkpoint.folder import FOLDER
from emulator.checkpoint.shards import Shard, data_parallel, parameters, shards, total
from emulator.spec.checkpoint import CheckpointModel
from emulator.spec.storage import Cache
from emulator.units import show_bytes

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
