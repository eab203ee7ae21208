"""Loaders read the batches of a rank ahead of its accelerator. `make_loader` makes the one asked for."""

from __future__ import annotations

from collections.abc import Sequence

from emulator.config.workload import LoaderSpec
from emulator.dataset.formats import format_named
from emulator.dataset.manifest import ADOPTED
from emulator.errors import DatasetError
from emulator.loader.base import Loader, SampleList
from emulator.loader.reading import Checksums, PartReader, WholeReader
from emulator.registry import LOADERS, load
from emulator.storage.base import Storage


def make_loader(
    kind: str,
    spec: LoaderSpec,
    storage: Storage,
    samples: SampleList,
    *,
    seed: int = 0,
    checksums: Checksums | None = None,
    columns: Sequence[str] = (),
) -> Loader:
    """The loader `kind`, a key of `registry.LOADERS`, of one rank over `samples` in `storage`.

    `seed` is that of the random crops. With `checksums` every sample is summed as it is read, and one that
    differs is a DatasetError. `columns` are those that are read of formats that have any; none: all. Raises
    DatasetError for a format that is not known or does not fit the workload, MissingError without PyTorch.
    """
    form = format_named(samples.format)
    crops = kind == "torch" and bool(spec.crop)
    many = samples.samples_per_file > 1 or bool(columns)
    if many and crops:
        raise DatasetError(
            f"crops of samples are not read out of files of {samples.samples_per_file}",
            "--set loader.crop=[] keeps all bytes of a sample, or use --loader direct",
        )
    # Arrays of a file that feedrate did not make have any shape and make no batch: their bytes are kept.
    foreign = getattr(samples, "recipe", "") == ADOPTED and len(form.parts(samples.names[0])) == 1
    reader: WholeReader
    if many or (kind == "torch" and not crops and (form.records or foreign)):
        reader = PartReader(storage, samples, form, spec.block_bytes, checksums, columns)
    else:
        reader = WholeReader(storage, samples, form, spec.block_bytes, checksums)
    loader: Loader = load(LOADERS[kind])(spec, reader, seed)
    return loader
