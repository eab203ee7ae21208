"""Would storage that compresses or deduplicates be flattered by this dataset? Measured on its files."""

from __future__ import annotations

import errno
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from emulator.dataset.fill import Done, Job, fill_slice, nothing
from emulator.dataset.manifest import MANIFEST, Manifest, read_manifest
from emulator.dataset.plan import Plan, outlook, slice_of
from emulator.dataset.seeds import load_seeds, prepare_seeds
from emulator.dataset.site import Site
from emulator.dataset.sizes import Index
from emulator.errors import DatasetError, SpecError, StorageError, storage_error
from emulator.storage.base import Store, WriteOptions
from emulator.units import show_bytes

BLOCK = 4096
_FILES = 16
_WINDOWS = 5  # the last one shows labels: a fifth of a sample is
_WINDOW = 1 << 20
_LEVEL = 3


def chosen(count: int, wanted: int = _FILES) -> list[int]:
    """At most `wanted` of `count` indices, evenly spread."""
    spread: list[int] = np.unique(np.linspace(0, count - 1, min(count, wanted)).round().astype(int)).tolist()
    return spread


def _windows(size: int) -> list[int]:
    """Offsets, multiples of BLOCK, of the windows of a file that are looked at."""
    if size <= _WINDOWS * _WINDOW:
        return list(range(0, size, _WINDOW))
    return [int(at) // BLOCK * BLOCK for at in np.linspace(0, size - _WINDOW, _WINDOWS)]


def measure_payload(store: Store, names: Sequence[str]) -> dict[str, float]:
    """What zstd level 3 makes of the files `names`, and the share of 4 KiB blocks that are in them once.

    zstd_ratio: bytes / compressed bytes. unique_blocks: distinct / all blocks, over all files together
    (0 to 1). bytes: what was looked at, of large files windows. Raises DatasetError, StorageError.
    """
    import zstandard

    compressor = zstandard.ZstdCompressor(level=_LEVEL)
    digests: set[bytes] = set()
    total = packed = blocks = 0
    room = memoryview(bytearray(_WINDOW))
    for name in names:
        with store.open(name) as blob:
            for offset in _windows(blob.size):
                data = room[: blob.read_into(offset, room[: min(_WINDOW, blob.size - offset)])]
                total += len(data)
                packed += len(compressor.compress(data))
                for at in range(0, len(data) - BLOCK + 1, BLOCK):
                    digests.add(hashlib.blake2b(data[at : at + BLOCK], digest_size=16).digest())
                    blocks += 1
    return {
        "files": len(names),
        "bytes": total,
        "zstd_ratio": round(total / packed, 4) if packed else 1.0,
        "unique_blocks": round(len(digests) / blocks, 6) if blocks else 1.0,
    }


# ---- The steps of making a dataset, for one process or one of many: each rank takes every n-th file.


@dataclass(frozen=True, slots=True)
class Todo:
    """What one worker has to make."""

    indices: Index
    planned: int
    """Bytes of them."""


def survey(site: Site, worker: int, workers: int, paranoid: bool) -> Todo:
    """What is left of the share of `worker` of `workers`. Raises StorageError."""
    left = site.unfinished(slice_of(np.arange(site.plan.files), worker, workers), paranoid)
    return Todo(left, int(site.plan.planned_bytes(left).sum()) if len(left) else 0)


def job_of(site: Site, options: WriteOptions) -> Job:
    """What the workers of `site` need to know. Raises DatasetError."""
    volumes = load_seeds(site.seeds, site.plan.seeds)
    return Job(plan=site.plan, store=site.store, volumes=volumes, options=options)


def with_seeds(plan: Plan, store: Store, seeds: Path | None) -> Plan:
    """`plan` with the identity of its seeds, which are prepared when its payload is grown from any.

    Raises SpecError, DatasetError, StorageError.
    """
    if plan.recipe.payload != "ct-realistic":
        if seeds is not None:
            raise SpecError(
                f"--seeds is for the payload ct-realistic, not {plan.recipe.payload}", "leave one out"
            )
        return plan
    return replace(plan, seeds=prepare_seeds(Site(store, plan).seeds, seeds, plan.recipe.size))


def fill(
    site: Site, todo: Todo, worker: int, threads: int, options: WriteOptions, done: Done = nothing
) -> None:
    """Make what is to do. Raises StorageError."""
    try:
        fill_slice(job_of(site, options), todo.indices, worker, threads, done)
    except OSError as error:
        raise failure(site, error) from None


def failure(site: Site, error: OSError) -> StorageError:
    """A failed write as one line: what is missing and how to go on."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        said = storage_error(error, "cannot write a sample")
        return StorageError(said.what, f"{said.hint or 'see the system log'}; the same command resumes")
    records = site.recorded()
    missing = max(outlook(site.plan).total - int(records["bytes"].sum()), 0)
    return StorageError(
        f"no space left in {site.store}: {len(records)} of {site.plan.files} files are done, "
        f"{show_bytes(missing)} are missing",
        "free that much and run the same command again, it resumes",
    )


def finished(site: Site) -> Manifest | None:
    """The manifest when the dataset is complete and has one. Raises StorageError."""
    if site.store.size(MANIFEST) is None:
        return None
    try:
        manifest = read_manifest(site.store)
    except DatasetError:
        return None
    same = manifest.identity == site.plan.identity and len(manifest.names) == site.plan.files
    return manifest if same else None


def finish(site: Site) -> Manifest:
    """Measure the files and write the manifest, once every worker is done. Raises FeedrateError."""
    rows = site.table()
    form, names = site.plan.form, site.plan.names
    parts = [part for index in chosen(len(rows)) for part in form.parts(names[index])]
    return site.finish(rows, measure_payload(site.store, parts))
