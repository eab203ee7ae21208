"""JPEG files: their markers, their size, and others' files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from contracts.format_contract import FormatContract, Sample

from emulator.config.recipe import load_recipe
from emulator.dataset.formats import format_named
from emulator.dataset.sizes import sizes_of

OTHERS = bytes.fromhex("ffd8ffe000104a46494600010100000100010000") + bytes(300) + b"\xff\xd9"
"""The head of a camera's file, and its end."""


class TestJpeg(FormatContract):
    name = "jpeg"

    def open_elsewhere(self, files: list[Path], sample: Sample) -> None:
        """No decoder makes pixels of it, as the docs say: the markers are looked at."""
        data = files[0].read_bytes()
        at, markers = 2, [data[:2]]
        while markers[-1] != b"\xff\xda":
            markers.append(data[at : at + 2])
            at += 2 + int.from_bytes(data[at + 2 : at + 4], "big")
        assert markers == [b"\xff\xd8", b"\xff\xef", b"\xff\xc0", b"\xff\xda"]
        assert data[at:-2] == sample.x.tobytes() + sample.y.tobytes()
        assert data[-2:] == b"\xff\xd9"


def test_files_of_others_pass_at_any_size():
    for size in (len(OTHERS), len(OTHERS) + 5000):
        format_named("jpeg").check_head(memoryview(OTHERS), size, "cat.jpeg")


def test_files_have_the_published_size():
    recipe = load_recipe("retinanet")
    voxels = sizes_of(recipe.size, 0).shapes(np.arange(3)).prod(axis=1)
    assert abs(format_named("jpeg").planned_bytes(voxels) - 322_957).max() < 60
