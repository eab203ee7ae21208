"""From (seed, index) to the bytes of a sample: pure, the same for any worker, thread or rank.

The random bits are AES-128 in counter mode, keyed by (dataset seed, sample index): as fast as memory,
never the same in two files. Checksums are taken while the bytes are still in the core's cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from emulator.config.recipe import payload_ratio
from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import SLACK, Fill, Key, Place, Shape
from emulator.dataset.seeds import SeedVolume

CHUNK = 1 << 20
BLOCK = 4096
"""Bytes that storage compresses and deduplicates at once, at the least."""

_ZEROS = bytes(CHUNK)
_ZSTD_BLOCK_COST = 7.0  # bytes that zstd spends on a run of zeros per block, measured
_NOISE = np.uint32(0xFFF)  # low mantissa bits: real CT noise is above them
_SCALE = (0.9, 1.1)
_SHIFT = (-0.1, 0.1)


def sample_key(seed: int, index: int) -> bytes:
    """32 bytes that belong to sample `index` of the dataset `seed` alone."""
    return hashlib.sha256(f"feedrate sample {seed} {index}".encode()).digest()


class Keystream:
    """Random bytes that depend on the key and the stream's number only."""

    def __init__(self, key: bytes, stream: int) -> None:
        from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

        nonce = stream.to_bytes(8, "big") + bytes(8)
        self._cipher = Cipher(algorithms.AES(key[:16]), modes.CTR(nonce)).encryptor()

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes (at most CHUNK); `memory` should be SLACK longer."""
        source = _ZEROS if size == CHUNK else memoryview(_ZEROS)[:size]
        if len(memory) >= size + SLACK // 2:
            self._cipher.update_into(source, memory[: size + SLACK // 2])
        else:
            memory[:size] = self._cipher.update(bytes(source))


class RandomSource:
    """The bytes of an array: the first `keep` of each 4 KiB are random, the others zero."""

    def __init__(self, key: bytes, stream: int, keep: int = BLOCK) -> None:
        self._keystream = Keystream(key, stream)
        self._keep = keep
        self._at = 0
        self.crc = 0

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes to the head of `memory`."""
        for start in range(0, size, CHUNK):
            step = min(CHUNK, size - start)
            self._keystream.into(memory[start : start + step + SLACK], step)
            chunk = memory[start : start + step]
            if self._keep < BLOCK:
                _thin(np.frombuffer(chunk, np.uint8), self._keep, self._at % BLOCK)
            self.crc = crc32(chunk, self.crc)
            self._at += step


def _thin(data: NDArray[np.uint8], keep: int, phase: int) -> None:
    """Zero all but the first `keep` bytes of each block, in place; `data` begins `phase` bytes into one."""
    first = -phase % BLOCK
    data[max(keep - phase, 0) : first] = 0
    rest = data[first:]
    whole = len(rest) // BLOCK * BLOCK
    rest[:whole].reshape(-1, BLOCK)[:, keep:] = 0
    rest[whole + keep :] = 0


def filled_from(sources: Mapping[Key, RandomSource]) -> Fill:
    """A Fill with the bytes of `sources`."""

    def fill(x: Place, y: Place) -> None:
        for place, source in ((x, sources["x"]), (y, sources["y"])):
            source.into(place.slack, place.size)
            place.crc = source.crc

    return fill


def kept_per_block(ratio: float) -> int:
    """Random bytes in 4 KiB so that zstd compresses `ratio` times."""
    return max(16, min(BLOCK, round(BLOCK / ratio - (_ZSTD_BLOCK_COST if ratio > 1 else 0))))


def mirrored(length: int, start: int, source: int) -> NDArray[np.int64]:
    """`length` indices into an axis of `source` voxels from `start` on, to and fro: no seams."""
    turn = (np.arange(length) + start) % (2 * source)
    return np.where(turn < source, turn, 2 * source - 1 - turn)


def ct_like(key: bytes, volumes: Sequence[SeedVolume], shape: Shape) -> Fill:
    """A Fill with seed volumes: another place, turned, brighter or darker, noise in the low bits.

    Labels are moved along and stay exact.
    """
    rng = np.random.Generator(np.random.Philox(key=np.frombuffer(key[16:], np.uint64)))

    def fill(x: Place, y: Place) -> None:
        samples, depth, height, width = shape
        images = np.frombuffer(x.data, "<u4").reshape(samples, depth, height * width)
        labels = np.frombuffer(y.data, np.uint8).reshape(samples, depth, height, width)
        noise = Keystream(key, 2)
        room = memoryview(bytearray(4 * height * width + SLACK))
        for sample in range(samples):
            volume = volumes[int(rng.integers(len(volumes)))]
            axes = [
                mirrored(edge, int(rng.integers(2 * source)), source)
                for edge, source in zip((depth, height, width), volume.x.shape, strict=True)
            ]
            scale, shift = (np.float32(rng.uniform(*bounds)) for bounds in (_SCALE, _SHIFT))
            for z in range(depth):
                image = _cut(volume.x, axes, z) * scale + shift
                low = _noise(noise, room, 4 * height * width)
                images[sample, z] = (image.reshape(-1).view("<u4") & ~_NOISE) | (low & _NOISE)
                labels[sample, z] = _cut(volume.y, axes, z)
        x.seal()
        y.seal()

    return fill


def _cut(volume: NDArray[Any], axes: Sequence[NDArray[np.int64]], z: int) -> NDArray[Any]:
    """Plane `z` of the moved volume."""
    plane: NDArray[Any] = volume[axes[0][z]].take(axes[1], axis=0).take(axes[2], axis=1)
    return plane


def _noise(keystream: Keystream, room: memoryview, size: int) -> NDArray[np.uint32]:
    for start in range(0, size, CHUNK):
        step = min(CHUNK, size - start)
        keystream.into(room[start : start + step + SLACK], step)
    return np.frombuffer(room[:size], "<u4")


def random_sources(payload: str, seed: int, index: int) -> dict[Key, RandomSource] | None:
    """The arrays of file `index` as streams, for payloads that are grown from nothing. Raises SpecError."""
    ratio = payload_ratio(payload)
    if payload == "ct-realistic":
        return None
    key = sample_key(seed, index)
    keep = BLOCK if ratio is None else kept_per_block(ratio)
    return {"x": RandomSource(key, 0, keep), "y": RandomSource(key, 1, keep)}


def fill_for(payload: str, seed: int, index: int, shape: Shape, volumes: Sequence[SeedVolume]) -> Fill:
    """What fills file `index`: a pure function of its arguments. Raises SpecError."""
    sources = random_sources(payload, seed, index)
    return filled_from(sources) if sources else ct_like(sample_key(seed, index), volumes, shape)
