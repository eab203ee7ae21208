"""The content of record.json: sizes, counts and times of a job; file names only with --keep-names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from emulator.config.reader import at_least
from emulator.errors import SpecError
from emulator.plugins.recorder.steps import StepTime

SCHEMA = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of a DataLoader."""

    batch_size: int = 0
    """Samples per batch; 0: the job makes its batches itself."""
    workers: int = 0
    """Number of worker processes; 0 if the job reads between its steps."""
    prefetch_factor: int = 0
    """Batches that each worker reads ahead."""
    sampler: str = "custom"
    """Name of PyTorch's sampler class; custom: a class of the job; iterable: no sampler."""
    replacement: bool = False
    """True if the sampler draws each sample from all of them."""
    iterable: bool = False
    """True for an IterableDataset."""
    dataset_length: int = -1
    """Samples in the dataset, from len(); -1 if it has no length."""
    persistent_workers: bool = False
    """True if workers persist from one epoch to the next."""
    auto_collation: bool = True
    """False if the DataLoader does not collate: the dataset returns batches, or single samples."""
    pinned: bool = False
    """True if a thread takes batches from the workers and copies them to pinned memory, for a GPU."""
    marked: bool = False
    """True if the job marks its steps, without a DataLoader. `workers` are then threads that read ahead."""

    def __post_init__(self) -> None:
        at_least(0, self, "batch_size", "workers", "prefetch_factor")

    @property
    def length(self) -> int:
        """Samples in the dataset; 0 if unknown."""
        return max(0, self.dataset_length)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The reads of data files by the processes of a DataLoader, or by all others."""

    files: int = 0
    """Number of distinct files."""
    files_bytes: int = 0
    """Total size of these files, in bytes."""
    requests: int = 0
    """Number of read(2), pread(2), readv(2) and the like that returned data."""
    bytes: int = 0
    """Bytes that they returned. Without strace: the sizes of the files that were opened."""
    seconds: float = 0.0
    """Seconds in these calls, summed over threads."""
    maps: int = 0
    """Number of times that a file was mapped into memory. Reads of a map make no system call."""
    direct: int = 0
    """Bytes, included in `bytes`, that were read with O_DIRECT."""

    def __post_init__(self) -> None:
        at_least(0, self, "files", "files_bytes", "requests", "bytes", "seconds", "maps", "direct")

    def plus(self, other: Reads) -> Reads:
        """Return the sum over two ranks. A file that both read counts twice."""
        names = [one.name for one in fields(self)]
        return Reads(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True, kw_only=True)
class Loader:
    """One DataLoader of one rank."""

    rank: int
    host: str
    process: int
    settings: Settings
    torch: str = ""
    """PyTorch's version."""
    accelerator: str = ""
    """Name of the accelerator that the process used; empty if none was seen."""
    epochs: int
    steps: int
    batch_samples: float = 0.0
    """Mean samples of a batch for the job; 0 if unknown."""
    read_steps: int
    """Number of steps during which `reads` were seen."""
    others: float = 0.0
    """Median number of batches of other DataLoaders that the job takes between two of this one."""
    step_cpu_seconds: float = 0.0
    """Median CPU seconds of the training process per step, untraced if enough steps were; 0: not known."""
    batch_cpu_seconds: float = 0.0
    """Mean CPU seconds of the workers and their children per batch, or without workers of the process while
    it makes one; untraced if batches came after tracing."""
    batch_call_bytes: float | None = None
    """Mean bytes that read(2) and the like returned per batch, untraced; None: not known."""
    batch_storage_bytes: float | None = None
    """Mean bytes from storage per batch, untraced if batches came after tracing; None: not known."""
    first_storage_bytes: float | None = None
    """The same of the batches whose reads were traced."""
    reads: Reads

    def __post_init__(self) -> None:
        at_least(0, self, "rank", "epochs", "steps", "batch_samples", "others", "read_steps")
        at_least(0, self, "step_cpu_seconds", "batch_cpu_seconds", "batch_storage_bytes")

    @property
    def cpu_seconds(self) -> float:
        """CPU seconds of the process and its workers per step; 0: not known."""
        workers = self.batch_cpu_seconds if self.settings.workers else 0.0
        return self.step_cpu_seconds and self.step_cpu_seconds + workers

    @property
    def weight(self) -> float:
        """Estimated bytes read in all steps."""
        each = max(self.reads.bytes / max(1, self.read_steps), self.first_storage_bytes or 0.0)
        return each * self.steps


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What was seen of a job."""

    feedrate: Literal["recording"] = "recording"
    schema: int = SCHEMA
    created: str
    """Time of the recording, ISO 8601, UTC."""
    how: Literal["strace", "python"]
    """Source of the reads: traced system calls, or opened files."""
    why: str = ""
    """Why strace was not used; may be empty."""
    status: int = 0
    """Exit status of the job; -N for signal N."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    mount: str = ""
    """Where the data lies: mount point and type of the file system."""
    processes: int = 0
    """Number of Python processes in which the probe reported."""
    complete: bool = True
    """False if the job ended by an error or a signal, or only a part of it was recorded."""
    notes: tuple[str, ...] = ()
    """Sentences about gaps in the recording."""
    loaders: tuple[Loader, ...] = ()
    rest: Reads = field(default_factory=Reads)
    """Reads for no DataLoader."""
    traced_step_seconds: float | None = None
    """Median seconds from batch to batch while calls were traced, after the warm-up; None if unknown."""
    step_seconds: float | None = None
    """The same in steps that were not traced."""
    step: StepTime | None = None
    """Step time without waits for data, of the loader that read most bytes; None if unknown."""
    request_bytes: float | None = None
    """Mean bytes of a request that the data's device, or NFS mount, got from the job; None if others read
    from it, or if it counts none."""
    in_flight: float | None = None
    """Mean requests of the job under way at that device, while there were any; None as `request_bytes`."""
    names: Mapping[str, int] = field(default_factory=dict)
    """Bytes of each data file by name, with --keep-names; otherwise empty."""

    def __post_init__(self) -> None:
        if self.schema != SCHEMA:
            raise SpecError(f"schema {self.schema} is not supported")
