"""File formats of samples: how each is written, and where its arrays lie."""

from __future__ import annotations

from emulator.dataset.formats.base import Format, Sample
from emulator.dataset.formats.hdf5 import Hdf5
from emulator.dataset.formats.nifti import Nifti, NiftiGz
from emulator.dataset.formats.npy import NpyPair
from emulator.dataset.formats.npz import Npz
from emulator.dataset.formats.raw import Raw
from emulator.errors import DatasetError

__all__ = ["FORMATS", "Format", "Sample", "format_named"]

FORMATS: dict[str, Format] = {
    "npz": Npz(),
    "npy": NpyPair(),
    "nii": Nifti(),
    "nii.gz": NiftiGz(),
    "hdf5": Hdf5(),
    "raw": Raw(),
}
"""Every format by its name."""


def format_named(name: str) -> Format:
    """The format of that name. Raises DatasetError."""
    if name not in FORMATS:
        raise DatasetError(f"the format {name!r} is not known", "known: " + ", ".join(FORMATS))
    return FORMATS[name]
