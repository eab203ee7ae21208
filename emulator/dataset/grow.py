"""Make the bytes of a sample from (seed, index): pure, the same for any worker, thread or rank.

The random bits are AES-128 in counter mode, keyed by (dataset seed, sample index): as fast as memory,
never the same in two files. Checksums are taken while the bytes are still in the core's cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from emulator.config.recipe import payload_ratio
from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import SLACK, Key, MemorySource, Shape, Sources
from emulator.dataset.seeds import Image, Label, SeedVolume
from emulator.units import BLOCK_BYTES

CHUNK = 1 << 20

_ZEROS = memoryview(bytes(CHUNK))
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
        nonce = stream.to_bytes(8, "big") + bytes(8)
        self._cipher = Cipher(algorithms.AES(key[:16]), modes.CTR(nonce)).encryptor()

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes (at most CHUNK); `memory` should be SLACK longer."""
        if len(memory) >= size + SLACK // 2:
            self._cipher.update_into(_ZEROS[:size], memory[: size + SLACK // 2])
        else:
            memory[:size] = self._cipher.update(_ZEROS[:size])


class RandomSource:
    """The bytes of an array: the first `keep` of each 4 KiB are random, the others zero. A Source."""

    def __init__(self, key: bytes, stream: int, keep: int = BLOCK_BYTES) -> None:
        self._made_from = key, stream
        self._keystream: Keystream | None = None  # made when the array is: not all formats have both
        self._keep = keep
        self._at = 0
        self.crc = 0

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes to the head of `memory`."""
        for start in range(0, size, CHUNK):
            step = min(CHUNK, size - start)
            if self._keystream is None:
                self._keystream = Keystream(*self._made_from)
            self._keystream.into(memory[start : start + step + SLACK], step)
            chunk = memory[start : start + step]
            if self._keep < BLOCK_BYTES:
                data, phase = np.frombuffer(chunk, np.uint8), self._at % BLOCK_BYTES
                first = -phase % BLOCK_BYTES  # where the first whole block begins
                data[max(self._keep - phase, 0) : first] = 0
                last = first + max(step - first, 0) // BLOCK_BYTES * BLOCK_BYTES
                data[first:last].reshape(-1, BLOCK_BYTES)[:, self._keep :] = 0
                data[last + self._keep :] = 0
            self.crc = crc32(chunk, self.crc)
            self._at += step


def ct_like(key: bytes, volumes: Sequence[SeedVolume], shape: Shape) -> tuple[Image, Label]:
    """Image and label from seed volumes: another place, turned, brighter or darker, noise in the low bits.

    Labels are moved along and stay exact. Both have shape `shape`.
    """
    rng = np.random.Generator(np.random.Philox(key=np.frombuffer(key[16:], np.uint64)))
    image, label = np.empty(shape, np.float32), np.empty(shape, np.uint8)
    samples, depth, height, width = shape
    keystream = Keystream(key, 2)
    noise = memoryview(bytearray(4 * height * width + SLACK))
    for sample in range(samples):
        volume = volumes[int(rng.integers(len(volumes)))]
        zs, ys, xs = (
            mirrored(edge, int(rng.integers(2 * source)), source)
            for edge, source in zip((depth, height, width), volume.x.shape, strict=True)
        )
        scale, shift = (np.float32(rng.uniform(*bounds)) for bounds in (_SCALE, _SHIFT))
        for z in range(depth):
            for start in range(0, 4 * height * width, CHUNK):
                keystream.into(noise[start:], min(CHUNK, 4 * height * width - start))
            low = np.frombuffer(noise, "<u4", height * width).reshape(height, width)
            plane = volume.x[zs[z]].take(ys, axis=0).take(xs, axis=1) * scale + shift
            image[sample, z].view("<u4")[...] = (plane.view("<u4") & ~_NOISE) | (low & _NOISE)
            label[sample, z] = volume.y[zs[z]].take(ys, axis=0).take(xs, axis=1)
    return image, label


def mirrored(length: int, start: int, source: int) -> NDArray[np.int64]:
    """`length` indices into an axis of `source` voxels from `start` on, to and fro: no seams."""
    turn = (np.arange(length) + start) % (2 * source)
    return np.where(turn < source, turn, 2 * source - 1 - turn)


def random_sources(payload: str, seed: int, index: int) -> dict[Key, RandomSource]:
    """The arrays of file `index` for a payload of random bytes. Raises SpecError."""
    ratio = payload_ratio(payload)
    key = sample_key(seed, index)
    keep = BLOCK_BYTES
    if ratio is not None:
        keep = max(16, min(BLOCK_BYTES, round(BLOCK_BYTES / ratio - (_ZSTD_BLOCK_COST if ratio > 1 else 0))))
    return {"x": RandomSource(key, 0, keep), "y": RandomSource(key, 1, keep)}


def sources_of(payload: str, seed: int, index: int, shape: Shape, volumes: Sequence[SeedVolume]) -> Sources:
    """The arrays of file `index`: a pure function of its arguments. Raises SpecError.

    Random ones are made while they are written; ct-realistic ones take the memory of the file.
    """
    if payload != "ct-realistic":
        return random_sources(payload, seed, index)
    image, label = ct_like(sample_key(seed, index), volumes, shape)
    return {
        "x": MemorySource(image.view(np.uint8).reshape(-1).data),
        "y": MemorySource(label.reshape(-1).data),
    }
