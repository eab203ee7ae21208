"""A format with a folder per sample: `sample_0000000.shelf/` holds `x` and `y`, each behind its shape."""

import math
import struct

import numpy as np

from emulator.dataset.formats.base import ArrayBytes, Format, bad, read_whole, require_size

_SHAPE = struct.Struct("<4Q")
_TYPES = {"x": np.dtype("<f4"), "y": np.dtype("|u1")}


class Shelf(Format):
    """Each array is a file of its own."""

    suffix = ".shelf/x"

    def parts(self, name):
        return (name, name.removesuffix("x") + "y")

    def planned_bytes(self, voxels, samples=1):
        return 2 * _SHAPE.size + 5 * samples * voxels

    def files(self, shape, sources):
        voxels = math.prod(shape)
        return [
            (_SHAPE.pack(*shape), ArrayBytes("x", 4 * voxels)),
            (_SHAPE.pack(*shape), ArrayBytes("y", voxels)),
        ]

    def check_head(self, head, size, name):
        key = name.rpartition("/")[2]
        if key not in _TYPES or len(head) < _SHAPE.size:
            raise bad(name, "no array of a shelf")
        voxels = math.prod(_SHAPE.unpack_from(head))
        require_size(name, size, _SHAPE.size + _TYPES[key].itemsize * voxels)

    def load(self, opened, name):
        data, key = read_whole(opened), name.rpartition("/")[2]
        array = np.frombuffer(data, _TYPES[key], offset=_SHAPE.size)
        return {key: array.reshape(_SHAPE.unpack_from(data))}
