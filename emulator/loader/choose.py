"""Which loaders there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from emulator.dataset.formats import format_named
from emulator.errors import MissingError
from emulator.loader.base import Loader, SampleList
from emulator.loader.reading import Checksums, WholeReader
from emulator.spec.workload import LoaderSpec
from emulator.storage.base import Storage

LoaderKind = Literal["torch", "direct"]

Make = Callable[[LoaderSpec, WholeReader, int], Loader]


def _torch(spec: LoaderSpec, reader: WholeReader, seed: int) -> Loader:
    try:
        from emulator.loader.torch import TorchLoader
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingError(
            "the torch loader needs PyTorch", "pip install feedrate[torch], or use --loader direct"
        ) from None
    return TorchLoader(spec, reader, seed)


def _direct(spec: LoaderSpec, reader: WholeReader, seed: int) -> Loader:
    from emulator.loader.direct import DirectLoader

    return DirectLoader(spec, reader)


LOADERS: Mapping[LoaderKind, Make] = {"torch": _torch, "direct": _direct}


def make_loader(
    kind: LoaderKind,
    spec: LoaderSpec,
    storage: Storage,
    samples: SampleList,
    *,
    seed: int = 0,
    checksums: Checksums | None = None,
) -> Loader:
    """The loader `kind` of one rank over `samples` in `storage`; `seed` is that of the random crops.

    With `checksums` every sample is summed as it is read, and one that differs is a DatasetError.
    Raises DatasetError for a format that is not known, MissingError without PyTorch.
    """
    reader = WholeReader(storage, samples, format_named(samples.format), spec.block_bytes, checksums)
    return LOADERS[kind](spec, reader, seed)
