"""File formats of samples: how each is written, and where its arrays lie."""

from __future__ import annotations

from emulator.config.recipe import Recipe
from emulator.dataset.formats.base import Format, Sample
from emulator.dataset.formats.hdf5 import Hdf5
from emulator.dataset.formats.jpeg import Jpeg
from emulator.dataset.formats.nifti import Nifti, NiftiGz
from emulator.dataset.formats.npy import NpyArray, NpyPair
from emulator.dataset.formats.npz import Npz
from emulator.dataset.formats.parquet import Parquet
from emulator.dataset.formats.raw import Raw
from emulator.dataset.formats.tfrecord import TfRecord
from emulator.errors import DatasetError

__all__ = ["ADOPTED", "FORMATS", "Format", "Sample", "form_of", "format_named"]

FORMATS: dict[str, Format] = {
    "npz": Npz(),
    "npy": NpyPair(),
    "nii": Nifti(),
    "nii.gz": NiftiGz(),
    "hdf5": Hdf5(),
    "raw": Raw(),
    "tfrecord": TfRecord(),
    "jpeg": Jpeg(),
    "parquet": Parquet(),
}
"""Every format that can be written, by its name."""

ADOPTED: dict[str, Format] = {"npy-array": NpyArray()}
"""Formats of files that others made: they are read, not written."""


def form_of(recipe: Recipe) -> Format:
    """The format that files of `recipe` are written in. Raises DatasetError."""
    if recipe.format == "parquet":
        return Parquet(recipe.columns, recipe.row_group)
    return format_named(recipe.format)


def format_named(name: str) -> Format:
    """The format of that name. Raises DatasetError."""
    form = FORMATS.get(name) or ADOPTED.get(name)
    if form is None:
        raise DatasetError(f"the format {name!r} is not known", "known: " + ", ".join((*FORMATS, *ADOPTED)))
    return form
