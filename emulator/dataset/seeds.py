"""Seed volumes: real cases or phantoms, preprocessed once as 3D U-Net's reference training does.

Resampled to 1.6 x 1.2 x 1.2 mm (image linearly, label to the nearest), clipped to [-79, 304] HU,
normalised to (x - 101) / 76.9, padded to the crop. The result lies in DIR/.feedrate/seeds as .npy files
that every worker maps, so that only what is read takes memory.

KiTS19's own voxels may not be shipped. A phantom is a synthetic body: an ellipsoid with two kidneys,
tumours, a spine and noise. Kidneys and tumours take the share of voxels that they take in KiTS19 (0.684 % and
0.168 %). Only sums, products and comparisons of normal random numbers are used.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import SizeSpec
from emulator.dataset.sizes import HEADER_BYTES, SPACING, shapes_from_bytes
from emulator.errors import DatasetError, SpecError, storage_errors
from emulator.files import read_document, replacing, write_whole

SEEDS_VERSION = 1
PHANTOMS = 2
KIDNEY, TUMOUR = 1, 2
"""Labels; 0 is everything else."""

_CLIP = (-79.0, 304.0)
_MEAN, _SD = 101.0, 76.9
_SUFFIXES = (".nii.gz", ".nii")
_MOST_VOXELS = 2**31
"""Voxels of a resampled case, 10 GB in memory. More is a damaged spacing: KiTS19's mean has 29 million."""

Image = NDArray[np.float32]
Label = NDArray[np.uint8]
Shape3 = tuple[int, int, int]
"""Depth, height, width in voxels."""


@dataclass(frozen=True, slots=True)
class SeedVolume:
    """A preprocessed case: (depth, height, width)."""

    x: Image
    y: Label


# ---- Cases as published.


@dataclass(frozen=True, slots=True)
class Case:
    """A case as published: a folder with a segmentation and, mostly, an image."""

    name: str
    image: Path | None
    label: Path


def find_cases(folder: Path) -> list[Case]:
    """The cases with labels under `folder`, by name. Raises DatasetError, StorageError.

    `case_00000/imaging.nii.gz` and `segmentation.nii.gz` as in KiTS19, at any depth, also as `.nii`. Cases
    without labels are left out.
    """
    if not folder.is_dir():
        raise DatasetError(f"there is no folder {folder} with seeds", "check the path")
    with storage_errors("cannot list the seeds"):
        labels = sorted(path for suffix in _SUFFIXES for path in folder.rglob(f"segmentation{suffix}"))
    cases: dict[Path, Case] = {}
    for label in labels:
        image = next((p for s in _SUFFIXES if (p := label.parent / f"imaging{s}").is_file()), None)
        cases.setdefault(label.parent, Case(label.parent.name, image, label))
    if not cases:
        raise DatasetError(
            f"{folder} has no case with a segmentation",
            "expected case_00000/segmentation.nii.gz as in KiTS19",
        )
    return list(cases.values())


def read_volume(path: Path) -> tuple[NDArray[Any], tuple[float, float, float]]:
    """A seed volume as (depth, height, width) and its spacing in mm in that order. Raises DatasetError.

    World z (the table's direction in CT) becomes the first axis, whichever axis of the file it is: the
    first in KiTS19 as published, the last in most other NIfTI files.
    """
    import nibabel as nib
    from nibabel.filebasedimages import ImageFileError
    from nibabel.spatialimages import HeaderDataError, HeaderTypeError

    try:
        image = nib.load(path)
        data = image.dataobj.get_unscaled()
        slope, inter = float(image.dataobj.slope), float(image.dataobj.inter)
        spacing = [float(edge) for edge in image.header.get_zooms()[:3]]
        world = nib.orientations.io_orientation(image.affine)[:, 0]
    except (
        *(OSError, ValueError, TypeError, LookupError, ArithmeticError, EOFError, MemoryError, zlib.error),
        *(ImageFileError, HeaderDataError, HeaderTypeError, np.linalg.LinAlgError),
    ) as error:
        raise DatasetError(f"{path} is no readable NIfTI volume", str(error)[:200]) from None
    if data.dtype.kind not in "iuf":
        raise DatasetError(f"{path} is no volume: its voxels are {data.dtype}, not numbers")
    if data.ndim != 3 or min(data.shape) < 2 or min(spacing) <= 0 or not np.isfinite(spacing).all():
        raise DatasetError(f"{path} is no volume: shape {data.shape}, spacing {spacing}")
    axes = np.argsort(-world) if sorted(world.tolist()) == [0.0, 1.0, 2.0] else np.array([2, 1, 0])
    ordered = tuple(int(axis) for axis in axes)
    if (slope, inter) != (1.0, 0.0):
        data = data.astype(np.float32) * np.float32(slope) + np.float32(inter)
    return data.transpose(ordered), (spacing[ordered[0]], spacing[ordered[1]], spacing[ordered[2]])


def preprocess(case: Case, number: int, min_edge: int) -> SeedVolume:
    """A case as the training sees it; one without an image gets phantom intensities in its real labels.

    Raises DatasetError.
    """
    labels, spacing = read_volume(case.label)
    # floor(voxels x spacing / target) an axis, at least 1
    depth, height, width = (
        max(1, int(n * mm / target)) for n, mm, target in zip(labels.shape, spacing, SPACING, strict=True)
    )
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


Weights = tuple[NDArray[np.int64], NDArray[np.int64], Image]
"""First neighbour, second neighbour and the second's weight of each point of an axis."""


def _linear(source: int, target: int) -> Weights:
    """Return the weights that place `target` points between `source` points, corners on corners."""
    place = np.arange(target) * ((source - 1) / max(target - 1, 1))
    first = np.minimum(place.astype(np.int64), source - 1)
    return first, np.minimum(first + 1, source - 1), (place - first).astype(np.float32)


def _stretched(plane: Image, rows: Weights, columns: Weights) -> Image:
    """Resample a plane bilinearly."""
    first, second, share = rows
    plane = plane[first] * (1 - share)[:, None] + plane[second] * share[:, None]
    first, second, share = columns
    return plane[:, first] * (1 - share) + plane[:, second] * share


def resample_image(data: NDArray[Any], shape: Shape3) -> Image:
    """Resample trilinearly, with corners aligned, plane by plane."""
    (first, second, share), rows, columns = (
        _linear(source, target) for source, target in zip(data.shape, shape, strict=True)
    )
    planes: dict[int, Image] = {}
    result = np.empty(shape, np.float32)
    for z in range(shape[0]):
        planes = {
            key: planes[key] if key in planes else _stretched(data[key].astype(np.float32), rows, columns)
            for key in (int(first[z]), int(second[z]))
        }
        result[z] = planes[int(first[z])] * (1 - share[z]) + planes[int(second[z])] * share[z]
    return result


def resample_label(data: NDArray[Any], shape: Shape3) -> Label:
    """Resample to the nearest voxel: floor(i x source / target) along each axis."""
    z, y, x = (np.arange(t) * s // t for s, t in zip(data.shape, shape, strict=True))
    return np.ascontiguousarray(data[z][:, y][:, :, x]).astype(np.uint8)


def normalised(planes: Iterable[Image], shape: Shape3) -> Image:
    """Clip and normalise Hounsfield units, plane by plane, as the reference 3D U-Net does."""
    result = np.empty(shape, np.float32)
    for z, plane in enumerate(planes):
        result[z] = (np.clip(plane, *_CLIP) - np.float32(_MEAN)) / np.float32(_SD)
    return result


def padded(volume: NDArray[Any], min_edge: int) -> NDArray[Any]:
    """Pad `volume` to `min_edge` voxels along each axis by repeating its border voxels on both sides."""
    missing = [max(0, min_edge - edge) for edge in volume.shape]
    return np.pad(volume, [(m // 2, m - m // 2) for m in missing], mode="edge")


# ---- Phantoms.

_AIR, _FAT, _TISSUE, _KIDNEY, _TUMOUR, _BONE = -1000.0, -100.0, 45.0, 160.0, 80.0, 380.0
"""Hounsfield units."""
_NOISE = 18.0
_TEXTURE = 14.0
_COARSE = 24


def phantom(spec: SizeSpec, number: int) -> SeedVolume:
    """Phantom `number`, of the recipe's mean size."""
    size = np.array([max(spec.bytes_mean, HEADER_BYTES)], np.float64)
    depth, height, width = shapes_from_bytes(size, np.array([spec.aspect]), spec.min_edge)[0].tolist()
    shape = (depth, height, width)
    labels = phantom_labels(shape, number)
    return SeedVolume(normalised(hounsfield(labels, number), shape), labels)


def _grid(shape: Shape3) -> tuple[Image, Image, Image]:
    """Coordinates from -1 to 1 along each axis, shaped to be broadcast."""
    axes = [np.linspace(-1, 1, edge, dtype=np.float32) for edge in shape]
    return axes[0][:, None, None], axes[1][None, :, None], axes[2][None, None, :]


def _inside(grid: tuple[Image, Image, Image], centre: Any, radii: Any) -> NDArray[np.bool_]:
    """Mark the voxels of `grid` that lie in an ellipsoid."""
    terms = [((axis - c) / r) ** 2 for axis, c, r in zip(grid, centre, radii, strict=True)]
    inside: NDArray[np.bool_] = terms[0] + terms[1] + terms[2] <= 1
    return inside


def phantom_labels(shape: Shape3, number: int) -> Label:
    """Labels of phantom `number`: 0, KIDNEY, TUMOUR."""
    rng = np.random.Generator(np.random.Philox(key=np.array([0x5EED, number], np.uint64)))
    labels = np.zeros(shape, np.uint8)
    grid = _grid(shape)
    tumours = int(rng.integers(1, 3))
    for side in (-1, 1):
        centre = rng.uniform(-0.04, 0.04, 3) + np.array([0.0, 0.2, 0.42 * side])
        labels[_inside(grid, centre, np.array([0.29, 0.18, 0.145]) * rng.uniform(0.95, 1.05, 3))] = KIDNEY
    for tumour in range(tumours):
        side = 1 if (tumour + number) % 2 else -1
        centre = rng.uniform(-0.1, 0.1, 3) + np.array([0.0, 0.2, 0.45 * side])
        radius = (0.0032 / tumours) ** (1 / 3)
        labels[_inside(grid, centre, radius * rng.uniform(0.9, 1.1, 3))] = TUMOUR
    return labels


def hounsfield(labels: Label, number: int) -> Iterator[Image]:
    """Plane by plane, a CT of phantom `number` whose organs are where `labels` says, real or not."""
    rng = np.random.Generator(np.random.Philox(key=np.array([0xC7, number], np.uint64)))
    depth, height, width = labels.shape
    zs, ys, xs = _grid((depth, height, width))
    coarse = rng.standard_normal((_COARSE, _COARSE, _COARSE), dtype=np.float32)
    (first, second, share), rows, columns = (_linear(_COARSE, edge) for edge in (depth, height, width))
    for z in range(depth):
        at = (zs[z : z + 1], ys, xs)
        plane = np.full((height, width), _AIR, np.float32)
        plane[_inside(at, (0, 0, 0), (2.2, 0.78, 0.92))[0]] = _FAT
        plane[_inside(at, (0, 0, 0), (2.0, 0.68, 0.82))[0]] = _TISSUE
        plane[_inside(at, (0, 0.45, 0), (9.0, 0.13, 0.11))[0]] = _BONE
        plane[labels[z] == KIDNEY] = _KIDNEY
        plane[labels[z] == TUMOUR] = _TUMOUR
        body = plane > _AIR
        smooth = coarse[first[z]] * (1 - share[z]) + coarse[second[z]] * share[z]
        texture = _stretched(smooth, rows, columns)
        noise = texture * _TEXTURE + rng.standard_normal((height, width), dtype=np.float32) * _NOISE
        plane[body] += noise[body]
        yield plane


# ---- The volumes of a dataset, made once.


def prepare_seeds(cache: Path, folder: Path | None, spec: SizeSpec) -> list[dict[str, str]]:
    """Fill `cache` with the seeds of `folder`, or with phantoms; returns name and sha256 of each.

    Seeds that were made from the same source are kept. Raises DatasetError, StorageError.
    """
    makers: list[tuple[str, Callable[[], SeedVolume]]]
    with storage_errors("cannot prepare the seeds"):
        if folder is None:
            source = f"phantom {spec.bytes_mean} {spec.aspect} {spec.min_edge}"
            makers = [(f"phantom_{k}", partial(phantom, spec, k)) for k in range(PHANTOMS)]
        else:
            cases = find_cases(folder)
            source = " ".join(_stamp(case) for case in cases) + f" {spec.min_edge}"
            makers = [
                (case.name, partial(preprocess, case, k, spec.min_edge)) for k, case in enumerate(cases)
            ]
        key = hashlib.sha256(f"{SEEDS_VERSION} {source}".encode()).hexdigest()
        place = cache / key[:16]
        place.mkdir(parents=True, exist_ok=True)
        seeds = _kept(place, key)
        if seeds is None:
            _begin(place, key)
            try:
                seeds = [
                    {"name": name, "sha256": _save_seed(place / f"{k:04d}", make())}
                    for k, (name, make) in enumerate(makers)
                ]
            except BaseException:
                _remove(place)
                raise
            write_whole(place / "seeds.json", json.dumps({"key": key, "seeds": seeds}, indent=1).encode())
    return seeds


def _save_seed(start: Path, volume: SeedVolume) -> str:
    """Write both arrays of a seed to files whose names begin with `start`; return their SHA-256."""
    digest = hashlib.sha256()
    for part, array in (("x", volume.x), ("y", volume.y)):
        data = np.ascontiguousarray(array)
        digest.update(data.data)
        with replacing(start.with_name(f"{start.name}_{part}.npy")) as file:
            np.save(file, data, allow_pickle=False)
    return digest.hexdigest()


def _remove(place: Path) -> None:
    """Remove unfinished seeds, and the folders that hold nothing else."""
    with suppress(OSError):  # the error that left them unfinished is the one to report
        for file in [*place.glob("[0-9][0-9][0-9][0-9]_[xy].npy"), place / "seeds.json"]:
            file.unlink()
        place.rmdir()
        place.parent.rmdir()


def _begin(place: Path, key: str) -> None:
    """Mark the files in `place` as ours, before any is written.

    Raises DatasetError, StorageError, OSError.
    """
    told = place / "seeds.json"
    try:
        ours = not told.is_symlink() and json.loads(read_document(told))["key"] == key
    except (FileNotFoundError, SpecError, ValueError, KeyError, TypeError):
        ours = False
    if not ours and any(place.iterdir()):
        raise DatasetError(f"{place} holds files that feedrate did not make", "move it away")
    write_whole(told, json.dumps({"key": key, "seeds": None}))


def _stamp(case: Case) -> str:
    files = [path for path in (case.image, case.label) if path is not None]
    return " ".join([case.name, *(f"{path.stat().st_size} {path.stat().st_mtime_ns}" for path in files)])


def _kept(place: Path, key: str = "") -> list[dict[str, str]] | None:
    """The seeds that are whole in `place`; with `key`, when they were made from the source of that key."""
    try:
        found = json.loads(read_document(place / "seeds.json"))
        seeds: list[dict[str, str]] | None = found["seeds"]
    except (OSError, SpecError, ValueError, KeyError, TypeError):
        return None
    if seeds is None or (key and found.get("key") != key):
        return None
    whole = all((place / f"{k:04d}_{part}.npy").is_file() for k in range(len(seeds)) for part in "xy")
    return seeds if whole else None


def load_seeds(cache: Path, seeds: Sequence[Mapping[str, str]]) -> list[SeedVolume]:
    """The volumes of `seeds`, mapped from `cache`. Raises DatasetError."""
    if not seeds:
        return []
    wanted = [dict(seed) for seed in seeds]
    try:
        place = next((place for place in sorted(cache.iterdir()) if _kept(place) == wanted), None)
        if place is not None:
            return [
                SeedVolume(*(np.load(place / f"{k:04d}_{part}.npy", mmap_mode="r") for part in "xy"))
                for k in range(len(wanted))
            ]
    except (OSError, ValueError) as error:
        raise DatasetError(
            f"the seeds in {cache} cannot be read: {error}", "run the same command again"
        ) from None
    raise DatasetError(f"the seeds of the dataset are not in {cache}", "run the same command again")
