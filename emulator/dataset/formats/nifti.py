"""NIfTI-1: samples as a pair `_x.nii` (float32), `_y.nii` (uint8), plain or gzipped.

NIfTI's first axis varies fastest, so the volume (depth, height, width) in memory is the image
(width, height, depth) of the file: nothing is turned around. Headers are written by nibabel and
read here, so that a rank needs no nibabel. Seed volumes are read in `emulator.dataset.seeds`.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import (
    Array,
    Encoded,
    Fill,
    Layout,
    Peek,
    Room,
    Shape,
    Span,
    TwoFiles,
    bad,
    compose,
)
from emulator.dataset.formats.npy import array_layout
from emulator.dataset.formats.npz import inflate
from emulator.errors import DatasetError

SPACING = (1.6, 1.2, 1.2)
"""Millimetres per voxel along depth, height, width."""

_DATA = 352  # a header of 348 bytes and 4 bytes that say: no extensions
_TYPES = {2: "u1", 4: "i2", 8: "i4", 16: "f4", 64: "f8", 256: "i1", 512: "u2", 768: "u4"}
_CHUNK = 1 << 20
_LEVEL = 1


def nifti_header(shape: Shape, dtype: str) -> bytes:
    """Header of a volume with SPACING, world axes along the array's, as nibabel writes it."""
    import nibabel as nib

    header = nib.Nifti1Header()
    header.set_data_dtype(np.dtype(dtype))
    header.set_data_shape(shape[:0:-1] if shape[0] == 1 else shape[::-1])
    header.set_xyzt_units("mm")
    spacing = SPACING[::-1]
    header.set_zooms(spacing if shape[0] == 1 else (*spacing, 1.0))
    affine = np.diag([*spacing, 1.0])
    header.set_sform(affine, code="scanner")
    header.set_qform(affine, code="scanner")
    header["vox_offset"] = _DATA
    header["magic"] = b"n+1"
    return bytes(header.binaryblock) + bytes(4)


def _parse(data: memoryview, name: str) -> tuple[np.dtype[Any], Shape, int]:
    """(dtype, shape, offset of the data) from the first 348 bytes. Raises DatasetError."""
    if len(data) < 348:
        raise bad(name, "too short for a NIfTI header")
    order = next((mark for mark in "<>" if struct.unpack_from(f"{mark}i", data)[0] == 348), None)
    if order is None or bytes(data[344:347]) != b"n+1":
        raise bad(name, "not a NIfTI-1 file")
    rank, *edges = struct.unpack_from(f"{order}8h", data, 40)
    code = struct.unpack_from(f"{order}h", data, 70)[0]
    offset = struct.unpack_from(f"{order}f", data, 108)[0]
    if not 3 <= rank <= 4 or min(edges[:rank]) < 1 or code not in _TYPES:
        raise bad(name, "a NIfTI header that is not of a volume of numbers")
    if not 348 <= offset <= 1 << 20 or offset != int(offset):
        raise bad(name, f"a NIfTI header with its data at byte {offset}")
    samples = edges[3] if rank == 4 else 1
    return np.dtype(order + _TYPES[code]), (samples, edges[2], edges[1], edges[0]), int(offset)


def _span(head: memoryview, size: int, name: str) -> Span:
    """The volume of a file of `size` bytes that begins with `head`. Raises DatasetError."""
    dtype, shape, offset = _parse(head, name)
    span = Span(offset, dtype, shape)
    if offset + span.size != size:
        raise bad(name, f"{size} bytes where its header says {offset + span.size}")
    return span


def _volume(data: memoryview, name: str) -> Array:
    span = _span(data, len(data), name)
    return np.frombuffer(data, span.dtype, offset=span.offset).reshape(span.shape)


def _key(name: str) -> str:
    return "y" if "_y.nii" in name else "x"


def _layouts(shape: Shape) -> tuple[Layout, ...]:
    return (
        array_layout(nifti_header(shape, "<f4"), "x", shape),
        array_layout(nifti_header(shape, "|u1"), "y", shape),
    )


class Nifti(TwoFiles):
    """`NAME_x.nii` and `NAME_y.nii`."""

    suffix = "_x.nii"

    def planned_bytes(self, voxels: Any) -> Any:
        return voxels * 5 + 2 * _DATA

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        return _layouts(shape)

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        return {_key(name): _volume(data, name)}

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        return {_key(name): _span(peek(0, min(size, _DATA)), size, name)}

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        _span(head, size, name)


class NiftiGz(TwoFiles):
    """`NAME_x.nii.gz` and `NAME_y.nii.gz`, gzip level 1."""

    suffix = "_x.nii.gz"
    streams = False

    def planned_bytes(self, voxels: Any) -> Any:
        return voxels * 5 + voxels // 500 + 2 * (_DATA + 64)

    def layouts(self, shape: Shape) -> tuple[Layout, ...]:
        return _layouts(shape)

    def encode(self, shape: Shape, fill: Fill, room: Room) -> tuple[Encoded, ...]:
        plain = compose(_layouts(shape), fill, room)
        return tuple(_gzip(file.memory[: file.size], room, 2 + part) for part, file in enumerate(plain))

    def arrays(self, data: memoryview, name: str) -> dict[str, Array]:
        if len(data) < 18 or bytes(data[:3]) != b"\x1f\x8b\x08":
            raise bad(name, "not a gzip file, or one that is cut off")
        size = int.from_bytes(data[-4:], "little")
        return {_key(name): _volume(inflate(data, size, 31, name), name)}

    def spans(self, peek: Peek, size: int, name: str) -> dict[str, Span] | None:
        return None

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if len(head) < 18 or bytes(head[:3]) != b"\x1f\x8b\x08":
            raise bad(name, "not a gzip file, or one that is cut off")
        try:
            _parse(memoryview(zlib.decompressobj(31).decompress(head, _DATA)), name)
        except zlib.error as error:
            raise bad(name, f"broken compression ({error})") from None


def _gzip(data: memoryview, room: Room, part: int) -> Encoded:
    """`data` as a gzip file without a date, in the memory of another part."""
    memory = room(part, len(data) + len(data) // 1000 + 1024)
    stream = zlib.compressobj(_LEVEL, zlib.DEFLATED, 31)
    at = 0
    for start in range(0, len(data) + 1, _CHUNK):
        last = start + _CHUNK > len(data)
        packed = stream.compress(data[start : start + _CHUNK])
        for piece in (packed, stream.flush() if last else b""):
            memory[at : at + len(piece)] = piece
            at += len(piece)
    memory[at:] = bytes(len(memory) - at)
    return Encoded(memory, at, crc32(memory[:at]))


def read_volume(path: Path) -> tuple[Array, tuple[float, float, float]]:
    """A seed volume as (depth, height, width) and its spacing in mm in that order. Raises DatasetError.

    World z (the table's direction in CT) becomes the first axis, whichever axis of the file it is: the
    first in KiTS19 as published, the last in most other NIfTI files.
    """
    import nibabel as nib
    from nibabel.filebasedimages import ImageFileError

    try:
        image = nib.load(path)
        data = image.dataobj.get_unscaled()
        slope, inter = float(image.dataobj.slope), float(image.dataobj.inter)
        spacing = [float(edge) for edge in image.header.get_zooms()[:3]]
        world = nib.orientations.io_orientation(image.affine)[:, 0]
    except (OSError, ValueError, EOFError, zlib.error, ImageFileError) as error:
        raise DatasetError(f"{path} is no readable NIfTI volume", str(error)[:200]) from None
    if data.ndim != 3 or min(data.shape) < 2 or min(spacing) <= 0 or not np.isfinite(spacing).all():
        raise DatasetError(f"{path} is no volume: shape {data.shape}, spacing {spacing}")
    axes = np.argsort(-world) if sorted(world.tolist()) == [0.0, 1.0, 2.0] else np.array([2, 1, 0])
    ordered = tuple(int(axis) for axis in axes)
    if (slope, inter) != (1.0, 0.0):
        data = data.astype(np.float32) * np.float32(slope) + np.float32(inter)
    return data.transpose(ordered), (spacing[ordered[0]], spacing[ordered[1]], spacing[ordered[2]])
