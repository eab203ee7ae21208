"""Which loaders there are."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Literal

from emulator.dataset.formats import format_named
from emulator.errors import MissingError
from emulator.loader.base import Loader, SampleFormat, SampleList
from emulator.spec.workload import LoaderSpec
from emulator.storage.base import Storage

LoaderKind = Literal["torch", "direct"]

Make = Callable[[LoaderSpec, Storage, SampleList, SampleFormat, int], Loader]


def _torch(spec: LoaderSpec, storage: Storage, samples: SampleList, form: SampleFormat, seed: int) -> Loader:
    try:
        from emulator.loader.torch import TorchLoader
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingError(
            "the torch loader needs PyTorch", "pip install feedrate[torch], or use --loader direct"
        ) from None
    return TorchLoader(spec, storage, samples, form, seed)


def _direct(spec: LoaderSpec, storage: Storage, samples: SampleList, form: SampleFormat, seed: int) -> Loader:
    from emulator.loader.direct import DirectLoader

    return DirectLoader(spec, storage, samples, form)


LOADERS: Mapping[LoaderKind, Make] = {"torch": _torch, "direct": _direct}


def make_loader(
    kind: LoaderKind, spec: LoaderSpec, storage: Storage, samples: SampleList, *, seed: int = 0
) -> Loader:
    """The loader `kind` of one rank over `samples` in `storage`; `seed` is that of the random crops.

    Raises DatasetError for a format that is not known, MissingError without PyTorch.
    """
    return LOADERS[kind](spec, storage, samples, format_named(samples.format), seed)
