"""The bytes of a file to its target: from memory at once, or streamed through a small buffer."""

from __future__ import annotations

import mmap
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from emulator.dataset.checksum import crc32, crc32_join
from emulator.dataset.formats.base import PAGE, Encoded, Hole, Key, Layout, Room, Source
from emulator.dataset.grow import RandomSource, fill_for, random_sources
from emulator.dataset.plan import Plan
from emulator.dataset.seeds import SeedVolume
from emulator.dataset.site import Journal
from emulator.dataset.sizes import Index
from emulator.storage.base import Draft, Store, WriteOptions
from emulator.storage.folder import REQUEST, Target

__all__ = ["Target", "WriteOptions", "pour", "stream", "write_encoded"]


def write_encoded(target: Draft, encoded: Encoded) -> None:
    """A file that was composed in memory. Raises OSError."""
    target.put(encoded.memory[: -(-encoded.size // PAGE) * PAGE], 0)
    target.end(encoded.size)


def stream(target: Draft, layout: Layout, sources: Mapping[Key, Source], buffer: memoryview) -> None:
    """Write a file through `buffer`, page-aligned memory of whole pages, however large the file is.

    The arrays come from `sources`, in order. Literals that depend on their checksums are written last.
    Raises OSError.
    """
    late = _Late(layout)
    base = used = 0
    for _, piece in layout.placed():
        done, size = 0, piece.size if isinstance(piece, Hole) else len(piece)
        while done < size:
            step = min(size - done, len(buffer) - used)
            if isinstance(piece, Hole):
                sources[piece.key].into(buffer[used:], step)
            else:
                buffer[used : used + step] = piece[done : done + step]
            done, used = done + step, used + step
            if used == len(buffer):
                late.keep(buffer, base)
                target.put(buffer, base)
                base, used = base + used, 0
    sums = {key: source.crc for key, source in sources.items()}
    end = -(-used // PAGE) * PAGE
    buffer[used:end] = bytes(end - used)
    patches = {at + n: byte for at, data in layout.late(sums).items() for n, byte in enumerate(data)}
    for at, byte in patches.items():
        if at >= base:
            buffer[at - base] = byte
    target.put(buffer[:end], base)
    late.write(target, patches)
    target.end(layout.size)


def pour(target: Draft, blocks: Iterable[NDArray[np.uint8]], buffer: memoryview) -> tuple[int, int]:
    """Write a file that comes in blocks, one behind the other, through `buffer`; its (CRC-32, bytes).

    `buffer` is page-aligned memory of whole pages. Raises OSError.
    """
    base = used = crc = 0
    for block in blocks:
        data = block.reshape(-1).data
        crc = crc32(data, crc)
        while len(data):
            step = min(len(data), len(buffer) - used)
            buffer[used : used + step] = data[:step]
            data, used = data[step:], used + step
            if used == len(buffer):
                target.put(buffer, base)
                base, used = base + used, 0
    end = -(-used // PAGE) * PAGE
    buffer[used:end] = bytes(end - used)
    target.put(buffer[:end], base)
    target.end(base + used)
    return crc, base + used


class _Late:
    """Blocks that were written before the checksums in them were known."""

    def __init__(self, layout: Layout) -> None:
        offsets = layout.late({"x": 0, "y": 0})
        self._blocks = sorted(
            {(at + n) // PAGE * PAGE for at, data in offsets.items() for n in range(len(data))}
        )
        self._kept: dict[int, mmap.mmap] = {}

    def keep(self, buffer: memoryview, base: int) -> None:
        """Remember the blocks of `buffer`, which is to be written at offset `base`."""
        for block in self._blocks:
            if base <= block < base + len(buffer):
                self._kept[block] = mmap.mmap(-1, PAGE)  # page-aligned, as O_DIRECT wants it
                self._kept[block][:] = buffer[block - base : block - base + PAGE]

    def write(self, target: Draft, patches: Mapping[int, int]) -> None:
        """Write the blocks again with `patches`: offset in the file -> byte. Raises OSError."""
        for block, memory in self._kept.items():
            for at, byte in patches.items():
                if block <= at < block + PAGE:
                    memory[at - block] = byte
            target.put(memoryview(memory), block)


# ---- Fill a place with samples: a pool of threads over a slice of the indices.
#
# AES, checksums and writes run outside of Python's lock, so a few threads keep a disk busy. Random payloads
# are streamed through 16 MiB a thread; grown ones take the memory of one sample.


Done = Callable[[int, int], None]
"""Called with (files, bytes) that were just finished; from many threads."""


_SMALL = 8 << 20


def default_threads(cores: int, sample_bytes: float) -> int:
    """Writers of one process: more than cores, as most wait for the disk; still more for small samples,
    as most wait for fsync."""
    return min(16, 4 * cores if sample_bytes < _SMALL else cores + 2)


def nothing(files: int, size: int) -> None:
    """Nobody wants to know."""


@dataclass(frozen=True, kw_only=True)
class Job:
    """What every worker of a dataset knows."""

    plan: Plan
    store: Store
    volumes: Sequence[SeedVolume] = ()
    options: WriteOptions = field(default_factory=WriteOptions)


def make_file(job: Job, index: int, room: Room, journal: Journal) -> int:
    """File number `index` on storage, all its parts; returns its bytes. Raises OSError, SpecError.

    The parts get their names only when all are written and the journal knows them.
    """
    form, recipe = job.plan.form, job.plan.recipe
    depth, height, width = (int(edge) for edge in job.plan.shapes(np.array([index]))[0])
    shape = (recipe.samples_per_file, depth, height, width)
    streams = form.streams or form.serial
    sources = random_sources(recipe.payload, job.plan.seed, index) if streams else None
    with ExitStack() as stack:
        names = form.parts(job.plan.names[index])
        targets = [stack.enter_context(job.store.target(name, job.options)) for name in names]
        if sources is not None and form.serial:
            written = [pour(targets[0], form.blocks(shape, sources), room(0, REQUEST)[:REQUEST])]
        elif sources is not None:
            written = _stream(form.layouts(shape), targets, sources, room)
        else:
            fill = fill_for(recipe.payload, job.plan.seed, index, shape, job.volumes)
            written = _composed(form.encode(shape, fill, room), targets)
        size = sum(length for _, length in written)
        journal.add(index, size, crc32_join(written))
        for target in targets:
            target.publish()
    return size


def _stream(
    layouts: Sequence[Layout], targets: Sequence[Draft], sources: Mapping[Key, RandomSource], room: Room
) -> list[tuple[int, int]]:
    """(CRC-32, bytes) of each part, written through one buffer."""
    buffer = room(0, REQUEST)[:REQUEST]
    for layout, target in zip(layouts, targets, strict=True):
        stream(target, layout, sources, buffer)
    sums = {key: source.crc for key, source in sources.items()}
    return [(layout.crc(sums), layout.size) for layout in layouts]


def _composed(parts: Sequence[Encoded], targets: Sequence[Draft]) -> list[tuple[int, int]]:
    """(CRC-32, bytes) of each part, written from memory."""
    for part, target in zip(parts, targets, strict=True):
        write_encoded(target, part)
    return [(part.crc, part.size) for part in parts]


class _Shared:
    """What the threads of a pool share: the next index, the first error, the wish to stop."""

    def __init__(self, indices: Index) -> None:
        self._indices: Iterator[int] = iter(indices.tolist())
        self._lock = threading.Lock()
        self.error: BaseException | None = None
        self.stop = False

    def next(self) -> int | None:
        with self._lock:
            return None if self.stop else next(self._indices, None)

    def fail(self, error: BaseException) -> None:
        with self._lock:
            self.error = self.error or error
            self.stop = True


def fill_slice(job: Job, indices: Index, worker: int, threads: int, done: Done = nothing) -> None:
    """Make the files `indices`, and keep the journal of `worker`.

    On an error the files in work are finished, then it is raised. Raises OSError, FeedrateError.
    """
    shared = _Shared(indices)
    with Journal(job.store, worker) as log:

        def work() -> None:
            room = Room()
            try:
                while (index := shared.next()) is not None:
                    done(1, make_file(job, index, room, log))
            except Exception as error:  # noqa: BLE001  raised again in the caller's thread
                shared.fail(error)

        pool = [threading.Thread(target=work, daemon=True) for _ in range(max(1, min(threads, len(indices))))]
        try:
            for thread in pool:
                thread.start()
            for thread in pool:
                thread.join()
        finally:
            shared.stop = True
            for thread in pool:
                if thread.ident is not None:
                    thread.join()
    if shared.error is not None:
        raise shared.error
