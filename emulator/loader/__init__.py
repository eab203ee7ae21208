"""Loaders, which read the batches of a rank ahead of its accelerator. `make_loader` makes one by its name."""

from __future__ import annotations

import math
from typing import Any

from emulator.calls import Calls
from emulator.config.workload import AccessSpec, LoaderSpec
from emulator.dataset.formats import format_named
from emulator.dataset.formats.base import Format
from emulator.dataset.manifest import ADOPTED, Manifest
from emulator.errors import DatasetError
from emulator.loader.base import Loader, LoaderPlugin
from emulator.loader.reading import ALL, Reader
from emulator.registry import LOADERS
from emulator.storage.base import Storage


def _torch() -> Any:
    from emulator.loader.torch import TorchLoader  # here: it imports PyTorch

    return TorchLoader


def _begin_torch() -> None:
    from emulator.loader.torch import fork_server

    fork_server()


def _direct() -> Any:
    from emulator.loader.direct import DirectLoader

    return DirectLoader


TORCH = LoaderPlugin(
    get=_torch,
    begin=_begin_torch,
    summary="reads with PyTorch's DataLoader and np.load, at their CPU cost",
    tensors=True,
    as_training=True,
)
DIRECT = LoaderPlugin(
    get=_direct, summary="shows what the storage can do: large requests, every byte read and discarded"
)


def reads_by_library(kind: str, samples: Manifest, access: AccessSpec = ALL) -> bool:
    """Return True if the loader reads whole files through the format's library. Raises DatasetError."""
    form = format_named(samples.format)
    if not LOADERS.load(kind).tensors or form.records:
        return False
    return samples.samples_per_file == 1 and not access.columns and not _foreign(samples, form)


def _foreign(samples: Manifest, form: Format) -> bool:
    # Arrays in adopted files differ in shape and cannot be stacked into a batch: read their bytes.
    return samples.recipe == ADOPTED and len(form.parts(samples.names[0])) == 1


def make_loader(
    kind: str,
    spec: LoaderSpec,
    storage: Storage,
    samples: Manifest,
    *,
    seed: int = 0,
    access: AccessSpec = ALL,
    calls: Calls | None = None,
) -> Loader:
    """Make the loader `kind`, an entry point of `feedrate.loaders`, for one rank.

    It reads `samples` from `storage`. `seed` is that of random crops. `access` has the columns or pieces to
    read, and whether workers persist between calls of `read`. Raises DatasetError for a format that is
    unknown or does not fit the workload, MissingError without PyTorch.
    """
    form, owner = format_named(samples.format), LOADERS.load(kind)
    arrays = calls is None and reads_by_library(kind, samples, access)
    reader = Reader(storage, samples, form, spec.block_bytes, arrays, access, calls)
    uncropped = reader.in_parts or form.records
    if owner.tensors and spec.crop and uncropped and not _foreign(samples, form):
        files = f"files of {samples.samples_per_file}" if reader.in_parts else f"{samples.format} files"
        raise DatasetError(
            f"the torch loader cannot crop samples of {files}",
            "use --set loader.crop=[] to load whole samples, or --loader direct",
        )
    loader: Loader = owner.get()(spec, reader, seed)
    return loader


def buffer_bytes(kind: str, spec: LoaderSpec, mean: float) -> float:
    """Return the bytes of a rank's buffers, for samples of `mean` bytes."""
    if not LOADERS.load(kind).tensors:
        return spec.workers * spec.block_bytes
    return spec.workers * mean + shared_bytes(spec, mean)


def shared_bytes(spec: LoaderSpec, mean: float) -> float:
    """Return the bytes of the batches that workers of the torch loader hand over, in /dev/shm."""
    voxel_bytes = 5  # float32 image and uint8 label
    kept = math.prod(spec.crop) * voxel_bytes if spec.crop else mean
    return (spec.prefetch + 1) * spec.batch_size * kept
