"""What a run or a sweep is asked to do, decided before any rank starts."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from emulator.spec.place import Place
from emulator.spec.storage import StorageSpec
from emulator.spec.workload import Workload

LoaderKind = Literal["torch", "direct"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One workload on one dataset on one storage."""

    dataset: Place
    """Its folder, or its objects."""
    workload: Workload
    loader: LoaderKind
    storage: StorageSpec
    epochs: int | None
    """Epochs of a point, at most; None: as many as `steps` take."""
    steps: int | None
    """Steps of a rank in a point, at most; None: whole epochs."""
    verify_reads: bool = False
    """Compare every sample with the manifest's checksum while it is read."""
    out: Path
    command: tuple[str, ...]
    """The command line that repeats it."""
