"""NIfTI-1: samples as a pair `_x.nii` (float32), `_y.nii` (uint8), plain or gzipped.

NIfTI's first axis varies fastest, so the volume (depth, height, width) in memory is the image
(width, height, depth) of the file, without a transposition. Headers are written and read without nibabel;
the payload ct-realistic reads seed volumes, which are more varied, with nibabel.
"""

from __future__ import annotations

import gzip
import io
import math
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from emulator.dataset.formats.base import (
    Array,
    ArrayBytes,
    Key,
    PairFormat,
    Piece,
    Shape,
    Source,
    Sources,
    bad,
    require_size,
)
from emulator.dataset.sizes import SPACING
from emulator.errors import SpecError

_DATA = 352  # a header of 348 bytes and 4 bytes for no extensions
_ITEMSIZES = {2: 1, 4: 2, 8: 4, 16: 4, 64: 8, 256: 1, 512: 2, 768: 4}
"""Bytes of a number by NIfTI's code of its type."""
_CHUNK = 1 << 20
_GZIP = 31  # zlib's window bits for a gzip header


def nifti_header(shape: Shape, key: Key) -> bytes:
    """Return the header of a volume with SPACING in mm and world axes along those of the array, like nibabel.

    Raises SpecError.
    """
    _, depth, height, width = shape
    if max(shape) > 32767 or shape[0] != 1:
        raise SpecError(
            f"a NIfTI file cannot have {shape[0]} x {depth} x {height} x {width} voxels",
            "it has one sample of at most 32767 voxels per axis; choose another format",
        )
    code, bits = (16, 32) if key == "x" else (2, 8)
    z, y, x = SPACING
    head = bytearray(_DATA)
    struct.pack_into("<i", head, 0, 348)
    struct.pack_into("<8h", head, 40, 3, width, height, depth, 1, 1, 1, 1)  # dim
    struct.pack_into("<2h", head, 70, code, bits)  # datatype, bitpix
    struct.pack_into("<8f", head, 76, 1, x, y, z, 1, 1, 1, 1)  # pixdim
    struct.pack_into("<3f", head, 108, _DATA, 1, 0)  # vox_offset, scl_slope, scl_inter
    head[123] = 2  # xyzt_units: millimetres
    struct.pack_into("<2h", head, 252, 1, 1)  # qform_code, sform_code: scanner
    struct.pack_into("<12f", head, 280, x, 0, 0, 0, 0, y, 0, 0, 0, 0, z, 0)  # srow
    head[344:347] = b"n+1"
    return bytes(head)


def _stated_bytes(head: memoryview, name: str) -> int:
    """Return the size of the uncompressed file according to its header of 348 bytes. Raises DatasetError."""
    if len(head) < 348:
        raise bad(name, "too short for a NIfTI header")
    order = next((mark for mark in "<>" if struct.unpack_from(f"{mark}i", head)[0] == 348), None)
    if order is None or bytes(head[344:347]) != b"n+1":
        raise bad(name, "not a NIfTI-1 file")
    rank, *edges = struct.unpack_from(f"{order}8h", head, 40)
    code = struct.unpack_from(f"{order}h", head, 70)[0]
    offset = struct.unpack_from(f"{order}f", head, 108)[0]
    if not 3 <= rank <= 4 or min(edges[:rank]) < 1 or code not in _ITEMSIZES:
        raise bad(name, "a NIfTI header of something other than a volume of numbers")
    if not 348 <= offset <= 1 << 20 or offset != int(offset):
        raise bad(name, f"a NIfTI header with its data at byte {offset}")
    voxels: int = math.prod(edges[:rank])
    return int(offset) + _ITEMSIZES[code] * voxels


class Nifti(PairFormat):
    """`NAME_x.nii` and `NAME_y.nii`."""

    suffix = "_x.nii"
    library = "nibabel.load"
    imports = ("nibabel",)

    def load(self, opened: str | io.BufferedIOBase, name: str) -> dict[str, Array]:
        import nibabel

        if isinstance(opened, str):
            volume = nibabel.load(opened)
        else:
            plain = gzip.GzipFile(fileobj=opened) if name.endswith(".gz") else opened
            volume = nibabel.Nifti1Image.from_file_map({"image": nibabel.FileHolder(fileobj=plain)})
        data = np.asanyarray(volume.dataobj).copy()  # reads all of a plain file, which is memory-mapped
        return {self.key(name): data.T}

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return 5 * samples * voxels + 2 * _DATA

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        return [
            (nifti_header(shape, "x"), ArrayBytes("x", 4 * voxels)),
            (nifti_header(shape, "y"), ArrayBytes("y", voxels)),
        ]

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        require_size(name, size, _stated_bytes(head, name))


class NiftiGz(Nifti):
    """`NAME_x.nii.gz` and `NAME_y.nii.gz`, gzip level 1."""

    suffix = "_x.nii.gz"

    def planned_bytes(self, voxels: Any, samples: int = 1) -> Any:
        return 5 * samples * voxels + samples * voxels // 500 + 2 * (_DATA + 64)

    def files(self, shape: Shape, sources: Sources) -> Sequence[Iterable[Piece]]:
        voxels = math.prod(shape)
        return [
            _gzipped(nifti_header(shape, "x"), sources["x"], 4 * voxels),
            _gzipped(nifti_header(shape, "y"), sources["y"], voxels),
        ]

    def check_head(self, head: memoryview, size: int, name: str) -> None:
        if len(head) < 18 or bytes(head[:3]) != b"\x1f\x8b\x08":
            raise bad(name, "not a gzip file, or a truncated one")
        try:
            plain = zlib.decompressobj(_GZIP).decompress(head, _DATA)
        except zlib.error as error:
            raise bad(name, f"broken compression ({error})") from None
        _stated_bytes(memoryview(plain), name)


def _gzipped(header: bytes, source: Source, size: int) -> Iterator[Piece]:
    """Yield a gzip file, without a date, of a header and the `size` bytes of an array."""
    stream = zlib.compressobj(1, zlib.DEFLATED, _GZIP)
    chunk = memoryview(bytearray(_CHUNK))
    chunk[: len(header)] = header
    used, left = len(header), size
    while left:
        step = min(left, _CHUNK - used)
        source.into(chunk[used:], step)
        yield stream.compress(chunk[: used + step])
        used, left = 0, left - step
    yield stream.flush()
