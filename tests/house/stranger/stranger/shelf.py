"""A format with a folder per sample: `sample_0000000.shelf/` holds `shape`, `x` and `y`."""

import math
import struct

import numpy as np

from emulator.dataset.formats.base import ArrayBytes, Format, Span, bad

_SHAPE = struct.Struct("<4Q")


class Shelf(Format):
    """Each array is a file of its own."""

    suffix = ".shelf/shape"

    def parts(self, name):
        folder = name.removesuffix("shape")
        return (name, f"{folder}x", f"{folder}y")

    def planned_bytes(self, voxels, samples=1):
        return samples * (_SHAPE.size + 5 * voxels)

    def files(self, shape, sources):
        voxels = math.prod(shape)
        return [(_SHAPE.pack(*shape),), (ArrayBytes("x", 4 * voxels),), (ArrayBytes("y", voxels),)]

    def spans(self, peek, size, name):
        leaf = name.rpartition("/")[2]
        if leaf == "shape":
            if size != _SHAPE.size:
                raise bad(name, f"{size} bytes are no shape")
            return {}
        dtype = np.dtype("<f4" if leaf == "x" else "|u1")
        return {leaf: Span(0, dtype, (size // dtype.itemsize,))}
