"""Cases of KiTS19 as published, read with nibabel and preprocessed as the reference training does."""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.sizes import SPACING
from emulator.errors import DatasetError, storage_errors
from emulator.plugins.kits.phantom import hounsfield
from emulator.plugins.kits.volumes import SeedVolume, normalised, padded, resample_image, resample_label

_SUFFIXES = (".nii.gz", ".nii")
_MOST_VOXELS = 2**31
"""Voxels of a resampled case, 10 GB in memory. More is a damaged spacing: KiTS19's mean has 29 million."""


@dataclass(frozen=True, slots=True)
class Case:
    """A folder with a segmentation and, mostly, an image."""

    name: str
    image: Path | None
    label: Path

    def stamp(self) -> str:
        """Return sizes and dates of the files: the same while nobody replaces one. Raises OSError."""
        files = [path.stat() for path in (self.image, self.label) if path is not None]
        return " ".join([self.name, *(f"{file.st_size} {file.st_mtime_ns}" for file in files)])


def find_cases(folder: Path) -> list[Case]:
    """Return the cases with labels under `folder`, by name. Raises DatasetError, StorageError.

    `case_00000/imaging.nii.gz` and `segmentation.nii.gz` as in KiTS19, at any depth, also as `.nii`; a case's
    folder may be a link, if it is not deeper. Cases without labels are left out.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder} with seeds", "check the path")
    with storage_errors("cannot list the seeds"):
        names = [f"{below}/segmentation{suffix}" for suffix in _SUFFIXES for below in ("**", "*")]
        labels = sorted({path for name in names for path in folder.glob(name)})
    cases: dict[Path, Case] = {}
    for label in labels:
        images = [label.parent / f"imaging{suffix}" for suffix in _SUFFIXES]
        image = next((path for path in images if os.path.lexists(path)), None)  # dead links: an error later
        cases.setdefault(label.parent, Case(label.parent.name, image, label))
    if not cases:
        raise DatasetError(
            f"{folder} has no case with a segmentation",
            "expected case_00000/segmentation.nii.gz as in KiTS19",
        )
    return list(cases.values())


def read_volume(path: Path) -> tuple[NDArray[Any], tuple[float, float, float]]:
    """Return a volume as (depth, height, width), and its spacing in mm in that order. Raises DatasetError.

    World z (the table's direction in CT) becomes the first axis, whichever axis of the file it is: the
    first in KiTS19 as published, the last in most other NIfTI files.
    """
    import nibabel as nib
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError, HeaderTypeError

    # What nibabel, gzip and numpy raise for damaged files.
    general = (OSError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, MemoryError)
    special = (zlib.error, ImageFileError, HeaderDataError, HeaderTypeError, np.linalg.LinAlgError)
    try:
        image = nib.load(path)
        data = image.dataobj.get_unscaled()
        slope, inter = float(image.dataobj.slope), float(image.dataobj.inter)
        unit = {"meter": 1000.0, "micron": 0.001}.get(image.header.get_xyzt_units()[0], 1.0)
        spacing = [float(edge) * unit for edge in image.header.get_zooms()[:3]]
        world = nib.orientations.io_orientation(image.affine)[:, 0]
    except (*general, *special) as error:
        raise DatasetError(f"{path} is no readable NIfTI volume", str(error)[:200]) from None
    if data.dtype.kind not in "iuf":
        raise DatasetError(f"{path} is no volume: its voxels are {data.dtype}, not numbers")
    if data.ndim != 3 or min(data.shape) < 2 or min(spacing) <= 0 or not np.isfinite(spacing).all():
        raise DatasetError(f"{path} is no volume: shape {data.shape}, spacing {spacing}")
    is_permutation = sorted(world.tolist()) == [0.0, 1.0, 2.0]
    z, y, x = np.argsort(-world).tolist() if is_permutation else (2, 1, 0)
    if (slope, inter) != (1.0, 0.0):
        data = data.astype(np.float32) * np.float32(slope) + np.float32(inter)
    if not np.isfinite(data).all():
        raise DatasetError(f"{path} has voxels that are nan or infinite", "use a number, as -1024 for air")
    return data.transpose(z, y, x), (spacing[z], spacing[y], spacing[x])


def preprocess(case: Case, number: int, min_edge: int) -> SeedVolume:
    """Return a case as the training sees it. Raises DatasetError.

    One without an image gets the intensities of phantom `number` in its real labels.
    """
    labels, spacing = read_volume(case.label)
    if labels.min() < -0.5 or labels.max() >= 255.5:
        raise DatasetError(f"{case.label} has labels {labels.min()} to {labels.max()}, not within 0 to 255")
    edges = [old * mm / new_mm for old, mm, new_mm in zip(labels.shape, spacing, SPACING, strict=True)]
    depth, height, width = (max(1, int(edge)) for edge in edges)
    shape = (depth, height, width)
    if math.prod(shape) > _MOST_VOXELS:
        raise DatasetError(f"{case.label} is no CT: shape {labels.shape}, spacing {spacing} mm")
    y = resample_label(labels, shape)
    if case.image is None:
        x = normalised(hounsfield(y, number), shape)
    else:
        image, image_spacing = read_volume(case.image)
        if image.shape != labels.shape or not np.allclose(image_spacing, spacing, rtol=1e-3):
            raise DatasetError(f"image and segmentation of {case.name} have different shapes or spacings")
        x = normalised(resample_image(image, shape), shape)
    return SeedVolume(padded(x, min_edge), padded(y, min_edge))
