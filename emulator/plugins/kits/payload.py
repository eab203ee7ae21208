"""The payload ct-realistic: its seed volumes, made once, and samples grown from them.

Seeds lie as .npy files in a folder that every worker maps, so that only what is read takes memory.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import SizeSpec
from emulator.dataset.formats.base import SLACK, Shape
from emulator.dataset.grow import CHUNK, Keystream
from emulator.errors import DatasetError, SpecError, storage_errors
from emulator.files import read_document, replacing, write_whole
from emulator.plugins.kits.cases import find_cases, preprocess
from emulator.plugins.kits.phantom import phantom
from emulator.plugins.kits.volumes import Image, Label, SeedVolume

SEEDS_VERSION = 2
"""Grows when the same cases would give other seeds than before."""
PHANTOMS = 2

_LIST = "seeds.json"
_NOISE = np.uint32(0xFFF)
"""Low mantissa bits: the noise of a real CT is above them."""


# ---- Seeds.


def prepare(cache: Path, folder: Path | None, spec: SizeSpec) -> list[dict[str, str]]:
    """Fill `cache` with the seeds of `folder`, or with phantoms; return name and sha256 of each.

    Seeds that were made from the same source are kept. Raises DatasetError, StorageError.
    """
    makers: list[tuple[str, Callable[[], SeedVolume]]]
    with storage_errors("cannot prepare the seeds"):
        if folder is None:
            source = f"phantom {spec.bytes_mean} {spec.aspect} {spec.min_edge}"
            makers = [(f"phantom_{number}", partial(phantom, spec, number)) for number in range(PHANTOMS)]
        else:
            cases = find_cases(folder)
            source = " ".join(case.stamp() for case in cases) + f" {spec.min_edge}"
            makers = [
                (case.name, partial(preprocess, case, number, spec.min_edge))
                for number, case in enumerate(cases)
            ]
        key = hashlib.sha256(f"{SEEDS_VERSION} {source}".encode()).hexdigest()
        place = cache / key[:16]
        place.mkdir(parents=True, exist_ok=True)
        there = _complete(place)
        if there is not None and there["key"] == key:
            seeds: list[dict[str, str]] = there["seeds"]
            return seeds
        _claim(place, key)
        try:
            seeds = [
                {"name": name, "sha256": _save(place, number, make())}
                for number, (name, make) in enumerate(makers)
            ]
        except BaseException:
            _remove(place)
            raise
        write_whole(place / _LIST, json.dumps({"key": key, "seeds": seeds}, indent=1))
    return seeds


def _array(place: Path, number: int, part: str) -> Path:
    return place / f"{number:04d}_{part}.npy"


def _complete(place: Path) -> dict[str, Any] | None:
    """Return the list of the seeds in `place` if all of them are there."""
    try:
        content = json.loads(read_document(place / _LIST))
        key, seeds = content["key"], content["seeds"]
    except (OSError, SpecError, ValueError, KeyError, TypeError):
        return None
    if not isinstance(seeds, list):  # None: they were not finished
        return None
    files = [_array(place, number, part) for number in range(len(seeds)) for part in "xy"]
    return {"key": key, "seeds": seeds} if all(file.is_file() for file in files) else None


def _claim(place: Path, key: str) -> None:
    """Mark the files in `place` as ours, before any is written.

    Raises DatasetError if they are somebody else's, StorageError, OSError.
    """
    claim = place / _LIST
    try:
        ours = not claim.is_symlink() and json.loads(read_document(claim))["key"] == key
    except (FileNotFoundError, SpecError, ValueError, KeyError, TypeError):
        ours = False
    if not ours and any(place.iterdir()):
        raise DatasetError(f"{place} holds files that feedrate did not make", "move it away")
    write_whole(claim, json.dumps({"key": key, "seeds": None}))


def _save(place: Path, number: int, volume: SeedVolume) -> str:
    """Write both arrays of a seed; return their SHA-256."""
    digest = hashlib.sha256()
    for part, array in (("x", volume.x), ("y", volume.y)):
        data = np.ascontiguousarray(array)
        digest.update(data.data)
        with replacing(_array(place, number, part)) as file:
            np.save(file, data, allow_pickle=False)
    return digest.hexdigest()


def _remove(place: Path) -> None:
    """Remove unfinished seeds, and the folders that hold nothing else."""
    with suppress(OSError):  # the error that left them unfinished is the one to report
        for file in [*place.glob("[0-9][0-9][0-9][0-9]_[xy].npy"), place / _LIST]:
            file.unlink()
        place.rmdir()
        place.parent.rmdir()


def load(cache: Path, seeds: Sequence[Mapping[str, str]]) -> list[SeedVolume]:
    """Return the volumes of `seeds`, mapped from `cache`. Raises DatasetError."""
    wanted, what = [dict(seed) for seed in seeds], f"the seeds of the dataset are not in {cache}"
    try:
        for place in sorted(cache.iterdir()):
            there = _complete(place)
            if there is not None and there["seeds"] == wanted:
                return [_mapped(place, number) for number in range(len(wanted))]
    except (OSError, ValueError) as error:
        what = f"the seeds in {cache} cannot be read: {error}"
    raise DatasetError(what, "remove that folder, and repeat the generate that made the dataset")


def _mapped(place: Path, number: int) -> SeedVolume:
    x, y = (np.load(_array(place, number, part), mmap_mode="r") for part in "xy")
    return SeedVolume(x, y)


# ---- Samples.


def grow(key: bytes, volumes: Sequence[SeedVolume], shape: Shape) -> tuple[Image, Label]:
    """Return image and label of `shape` from seeds moved, turned and made brighter or darker.

    The low bits of the image are noise, so that it compresses like a CT. Labels are moved along and stay
    exact. `key` has 32 bytes.
    """
    rng = np.random.Generator(np.random.Philox(key=np.frombuffer(key[16:], np.uint64)))
    image, label = np.empty(shape, np.float32), np.empty(shape, np.uint8)
    samples, depth, height, width = shape
    keystream = Keystream(key, 2)
    plane_bytes = 4 * height * width
    noise = memoryview(bytearray(plane_bytes + SLACK))
    for sample in range(samples):
        volume = volumes[int(rng.integers(len(volumes)))]
        zs, ys, xs = (
            mirrored(edge, int(rng.integers(2 * source)), source)
            for edge, source in zip((depth, height, width), volume.x.shape, strict=True)
        )
        scale = np.float32(rng.uniform(0.9, 1.1))
        shift = np.float32(rng.uniform(-0.1, 0.1))
        for z in range(depth):
            for start in range(0, plane_bytes, CHUNK):
                keystream.into(noise[start:], min(CHUNK, plane_bytes - start))
            low_bits = np.frombuffer(noise, "<u4", height * width).reshape(height, width) & _NOISE
            plane = volume.x[zs[z]].take(ys, axis=0).take(xs, axis=1) * scale + shift
            image[sample, z].view("<u4")[...] = (plane.view("<u4") & ~_NOISE) | low_bits
            label[sample, z] = volume.y[zs[z]].take(ys, axis=0).take(xs, axis=1)
    return image, label


def mirrored(length: int, start: int, source: int) -> NDArray[np.int64]:
    """Return `length` indices into an axis of `source` voxels from `start` on, to and fro: no seams."""
    turn = (np.arange(length) + start) % (2 * source)
    return np.where(turn < source, turn, 2 * source - 1 - turn)
