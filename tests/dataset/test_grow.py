"""Bytes of samples follow from (seed, index)."""

from __future__ import annotations

import io

import numpy as np
import pytest
import zstandard
from contracts.format_contract import written
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.recipe import load_recipe
from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats import format_named
from emulator.dataset.grow import sources_of
from emulator.plugins.kits.payload import mirrored
from emulator.plugins.kits.phantom import phantom
from emulator.plugins.kits.volumes import KIDNEY, TUMOUR, SeedVolume

SHAPE = (1, 96, 100, 101)


def grown(payload: str, seed: int = 0, index: int = 0, volumes: list[SeedVolume] | None = None) -> bytes:
    ((data,), (crc,)) = written(
        format_named("npz"), SHAPE, sources_of(payload, seed, index, SHAPE, volumes or [])
    )
    assert crc == crc32(data)
    return data


def ratio(data: bytes) -> float:
    return len(data) / len(zstandard.ZstdCompressor(level=3).compress(data))


@pytest.fixture(scope="module")
def volumes() -> list[SeedVolume]:
    return [phantom(load_recipe("tiny").size, number) for number in range(2)]


@pytest.mark.parametrize("payload", ["incompressible", "ratio=3", "ct-realistic"])
def test_bytes_belong_to_seed_and_index(payload, volumes):
    data = grown(payload, volumes=volumes)
    assert grown(payload, volumes=volumes) == data
    assert grown(payload, index=1, volumes=volumes) != data
    assert grown(payload, seed=1, volumes=volumes) != data


@pytest.mark.parametrize("wanted", [1, 1.5, 2, 4, 10, 32])
def test_a_ratio_is_met(wanted):
    assert ratio(grown(f"ratio={wanted}")) == pytest.approx(wanted, rel=0.05)


@pytest.mark.parametrize("payload", ["incompressible", "ratio=4", "ratio=32"])
def test_no_block_twice_across_files(payload):
    blocks = [
        data[at : at + 4096]
        for data in (grown(payload, index=i) for i in range(3))
        for at in range(0, len(data), 4096)
    ]
    assert len(set(blocks)) == len(blocks)


def test_ct_realistic_is_like_a_ct(volumes):
    form = format_named("npz")
    found = form.load(io.BytesIO(grown("ct-realistic", volumes=volumes)), "a")
    x, y = found["x"], found["y"]
    assert set(np.unique(y)) <= {0, KIDNEY, TUMOUR} and (y > 0).any()
    assert np.isfinite(x).all() and -3 < x.min() < -1.9 and 2 < x.max() < 3.1
    assert 1.3 < ratio(x.tobytes()) < 2.0, "a real CT slice as float32: 1.78"
    bright = [float(np.median(x[y == label])) for label in (0, KIDNEY)]
    assert bright[1] > bright[0], "the labels moved along with the image"


@given(st.integers(1, 80), st.integers(0, 200), st.integers(1, 40))
def test_mirrored_stays_inside_and_has_no_seam(length, start, source):
    indices = mirrored(length, start, source)
    assert indices.min() >= 0 and indices.max() < source
    assert np.abs(np.diff(indices)).max(initial=0) <= 1


@given(st.lists(st.binary(max_size=300), max_size=6))
def test_checksums_join(pieces):
    assert crc32_join([(crc32(piece), len(piece)) for piece in pieces]) == crc32(b"".join(pieces))
