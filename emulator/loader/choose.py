"""Which loaders there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from emulator.config.workload import LoaderSpec
from emulator.dataset.formats import format_named
from emulator.dataset.manifest import ADOPTED
from emulator.errors import DatasetError, MissingError
from emulator.loader.base import Loader, SampleFormat, SampleList
from emulator.loader.reading import Checksums, PartReader, WholeReader
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


def _foreign(samples: SampleList, form: SampleFormat) -> bool:
    """Files that feedrate did not make: arrays of any shape, which make no batch. Their bytes are kept."""
    return getattr(samples, "recipe", "") == ADOPTED and len(form.parts(samples.names[0])) == 1


def make_loader(
    kind: LoaderKind,
    spec: LoaderSpec,
    storage: Storage,
    samples: SampleList,
    *,
    seed: int = 0,
    checksums: Checksums | None = None,
    columns: Sequence[str] = (),
) -> Loader:
    """The loader `kind` of one rank over `samples` in `storage`; `seed` is that of the random crops.

    With `checksums` every sample is summed as it is read, and one that differs is a DatasetError.
    `columns` are those that are read of formats that have any; none: all. Raises DatasetError for a format
    that is not known or does not fit the workload, MissingError without PyTorch.
    """
    form = format_named(samples.format)
    many = samples.samples_per_file > 1 or bool(columns)
    if many and spec.crop and kind == "torch":
        raise DatasetError(
            f"crops of samples are not read out of files of {samples.samples_per_file}",
            "--set loader.crop=[] keeps all bytes of a sample, or use --loader direct",
        )
    if many or (kind == "torch" and not spec.crop and (form.records or _foreign(samples, form))):
        return LOADERS[kind](
            spec, PartReader(storage, samples, form, spec.block_bytes, checksums, columns), seed
        )
    return LOADERS[kind](spec, WholeReader(storage, samples, form, spec.block_bytes, checksums), seed)
