"""Make the bytes of a sample from (seed, index): pure, the same for any worker, thread or rank.

The random bits are AES-128 in counter mode, keyed by (dataset seed, sample index): as fast as memory,
never the same in two files. Checksums are taken while the bytes are still in the core's cache.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from emulator.config.recipe import SizeSpec, payload_ratio
from emulator.dataset.checksum import crc32
from emulator.dataset.formats.base import SLACK, Array, Key, MemorySource, Shape, Sources
from emulator.registry import PAYLOADS
from emulator.units import BLOCK_BYTES

CHUNK = 1 << 20
"""Bytes that are made at a time: they and their zeros fit a core's cache."""
_ZEROS = memoryview(bytes(CHUNK))


class SeedPayload(Protocol):
    """A payload that is grown from seed volumes."""

    def prepare(self, cache: Path, folder: Path | None, spec: SizeSpec) -> Sequence[Mapping[str, str]]:
        """Fill `cache` with seeds made from the user's `folder`, or with the payload's own.

        Returns name and sha256 of each, which become part of the dataset's identity. Raises DatasetError,
        StorageError.
        """
        ...

    def load(self, cache: Path, seeds: Sequence[Mapping[str, str]]) -> Any:
        """Return what `grow` needs of these seeds. Raises DatasetError."""
        ...

    def grow(self, key: bytes, seeds: Any, shape: Shape) -> tuple[Array, Array]:
        """Return x (float32) and y (uint8) of `shape`: a pure function. `key` has 32 bytes."""
        ...


@cache
def seed_payload(payload: str) -> SeedPayload | None:
    """Return the payload of that name; None if it is one of random bytes. Raises MissingError."""
    if payload not in PAYLOADS:
        return None
    found: SeedPayload = PAYLOADS.load(payload)
    return found


def sample_key(seed: int, index: int) -> bytes:
    """Return 32 bytes that belong to sample `index` of the dataset `seed` alone."""
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
        self._key, self._stream = key, stream
        self._keystream: Keystream | None = None
        self._keep = keep
        self._at = 0
        self.crc = 0

    def into(self, memory: memoryview, size: int) -> None:
        """Write the next `size` bytes to the head of `memory`."""
        if self._keystream is None:  # not before: some formats have no y
            self._keystream = Keystream(self._key, self._stream)
        for start in range(0, size, CHUNK):
            step = min(CHUNK, size - start)
            self._keystream.into(memory[start : start + step + SLACK], step)
            chunk = memory[start : start + step]
            if self._keep < BLOCK_BYTES:
                self._clear_tails(np.frombuffer(chunk, np.uint8))
            self.crc = crc32(chunk, self.crc)
            self._at += step

    def _clear_tails(self, data: Array) -> None:
        """Set all but the first `keep` bytes of each block to zero. `data` may begin within a block."""
        phase = self._at % BLOCK_BYTES
        first = -phase % BLOCK_BYTES  # where the first whole block begins
        last = first + max(len(data) - first, 0) // BLOCK_BYTES * BLOCK_BYTES
        data[max(self._keep - phase, 0) : first] = 0
        data[first:last].reshape(-1, BLOCK_BYTES)[:, self._keep :] = 0
        data[last + self._keep :] = 0


def random_sources(payload: str, seed: int, index: int) -> dict[Key, RandomSource]:
    """Return the arrays of file `index` for a payload of random bytes. Raises SpecError."""
    ratio = payload_ratio(payload)
    key = sample_key(seed, index)
    keep = BLOCK_BYTES
    if ratio is not None and ratio > 1:
        zstd_cost = 7.0  # bytes that zstd spends on the zeros of a block, measured
        keep = max(16, round(BLOCK_BYTES / ratio - zstd_cost))
    return {"x": RandomSource(key, 0, keep), "y": RandomSource(key, 1, keep)}


def sources_of(payload: str, seed: int, index: int, shape: Shape, seeds: Any) -> Sources:
    """Return the arrays of file `index`: a pure function of its arguments. Raises SpecError.

    Random ones are made while they are written; those grown from `seeds` take the memory of the file.
    """
    grown = seed_payload(payload)
    if grown is None:
        return random_sources(payload, seed, index)
    x, y = grown.grow(sample_key(seed, index), seeds, shape)
    return {"x": _in_memory(x), "y": _in_memory(y)}


def _in_memory(array: Array) -> MemorySource:
    return MemorySource(array.view(np.uint8).reshape(-1).data)
