"""Play a recorded job's batches: the same calls, by as many threads, with the CPU time between them."""

from __future__ import annotations

import time
import zlib
from collections import OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from emulator.calls import ADVISE, DRAWN, END, FIXED, MOVED, OPEN, READ, Calls, Drawn, Placed
from emulator.dataset.manifest import Manifest
from emulator.errors import StorageError
from emulator.files import Closing
from emulator.storage.base import HEAD, SKIM, Blob, Cancelled, Storage, closed
from emulator.storage.posix import aligned_buffer

_OPEN_FILES = 64
"""Most files that stay open after their batch, as a job's HDF5 files do."""
_ZEROS = bytes(2**13)


class _Call(NamedTuple):
    visit: int
    file_bytes: int
    op: int
    place: int
    offset: int
    bytes: int
    cpu: float
    """CPU seconds until the call, from the start of its thread's work on the batch."""


class Player(Closing):
    """Plays batches for one worker, which keeps files open from batch to batch."""

    def __init__(self, storage: Storage, samples: Manifest, calls: Calls, *, sleeps: bool) -> None:
        """`sleeps`: CPU time of the job is slept, not spent."""
        self._storage, self._samples, self._calls = storage, samples, calls
        self._sleeps = sleeps
        self._batches: dict[int, list[list[_Call]]] = {}
        self._last = _last_batches(calls)
        self._files: OrderedDict[int, Blob] = OrderedDict()
        self._epoch = 0
        self._pool = ThreadPoolExecutor(calls.threads) if calls.threads > 1 else None

    def close(self) -> None:
        """Close the files that are open."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
        self._close_files()

    def _close_files(self) -> None:
        for blob in self._files.values():
            blob.close()
        self._files.clear()

    def play(self, drawn: Drawn, epoch: int, cancelled: Cancelled) -> int:
        """Make the calls of a batch, and return the bytes that were read. No file stays open over epochs.

        Raises DatasetError for a file that is missing or too short, StorageError for one that cannot be read
        and if `cancelled()`.
        """
        if epoch != self._epoch:
            self._close_files()
            self._epoch = epoch
        if drawn.batch not in self._batches:
            self._batches[drawn.batch] = self._tasks(drawn.batch)
        placed = {visit.visit: visit for visit in drawn.visits}
        *tasks, end = self._batches[drawn.batch]
        if self._pool is None:
            read = sum(self._run(task, placed, cancelled) for task in tasks)
        else:
            read = sum(self._pool.map(lambda task: self._run(task, placed, cancelled), tasks))
        self._run(end, placed, cancelled)
        for visit in drawn.visits:
            if self._last[visit.visit] <= drawn.batch and (blob := self._files.pop(visit.file, None)):
                blob.close()
        return read

    def _tasks(self, batch: int) -> list[list[_Call]]:
        """Return the calls of a batch, for each thread that may begin by itself; its end is the last one."""
        rows = self._calls.batch(batch)
        ends = rows["op"] == END
        keys = np.zeros(len(rows), np.int64) if self._pool is None else rows["visit"]
        names = list(dict.fromkeys(keys[~ends].tolist()))
        parts = [rows[(keys == name) & ~ends] for name in names]
        return [_calls_of(part) for part in [*parts, rows[ends]]]

    def _run(self, calls: Sequence[_Call], placed: dict[int, Placed], cancelled: Cancelled) -> int:
        buffer = aligned_buffer(HEAD + SKIM)
        begun, slept, read = time.thread_time(), 0.0, 0
        for call in calls:
            owed = call.cpu - (time.thread_time() - begun) - slept
            if owed > 0:
                slept += self._spend(owed)
            if call.op == END:
                continue
            if cancelled():
                raise closed()
            visit = placed[call.visit]
            if call.op == OPEN or (blob := self._files.get(visit.file)) is None:
                blob = self._open(visit, anew=call.op == OPEN)
            if call.op != OPEN:
                read += _make(call, visit, blob, buffer)
        return read

    def _spend(self, seconds: float) -> float:
        """Spend CPU time as decoders do, without the GIL, or sleep; return the seconds that were slept."""
        if self._sleeps:
            time.sleep(seconds)
            return seconds
        end = time.thread_time() + seconds
        while time.thread_time() < end:
            zlib.crc32(_ZEROS)
        return 0.0

    def _open(self, visit: Placed, anew: bool) -> Blob:
        name, size = self._samples.names[visit.file], int(self._samples.sizes[visit.file])
        if visit.anew and (anew or visit.file not in self._files):
            self._storage.open(name, size).close()  # a cold cache forgets it
        blob = self._storage.reopen(name, size)
        before, self._files[visit.file] = self._files.pop(visit.file, None), blob
        if before is not None:
            before.close()
        if len(self._files) > _OPEN_FILES:
            self._files.popitem(last=False)[1].close()
        return blob


def _calls_of(rows: np.ndarray[tuple[int], np.dtype[np.void]]) -> list[_Call]:
    names = ("visit", "file_bytes", "op", "place", "offset", "bytes")
    columns = [rows[name].tolist() for name in names]
    cpu = (np.cumsum(rows["cpu_gap_us"].astype(np.float64)) / 1e6).tolist()
    return [_Call(*values) for values in zip(*columns, cpu, strict=True)]


def _last_batches(calls: Calls) -> dict[int, int]:
    """Return the last batch of each visit, where its file may be closed: not one of many samples."""
    rows = calls.rows[calls.rows["visit"] >= 0]
    kept = set(rows["visit"][np.isin(rows["place"], (MOVED, DRAWN, FIXED))].tolist())
    last = dict(zip(rows["visit"].tolist(), rows["batch"].tolist(), strict=True))
    return {visit: calls.batches if visit in kept else batch for visit, batch in last.items()}


def _make(call: _Call, visit: Placed, blob: Blob, buffer: memoryview) -> int:
    """Make a call that reads or advises, and return the bytes that were read."""
    if call.place == FIXED:
        begin, end = call.offset, call.offset + call.bytes
    elif call.place in (MOVED, DRAWN):
        begin = call.offset + visit.shift
        end = begin + call.bytes
    else:  # in a file that is a little longer or shorter, as far from its start or its end
        longer, middle = blob.size - call.file_bytes, call.file_bytes // 2
        begin, end = (at if at <= middle else at + longer for at in (call.offset, call.offset + call.bytes))
    begin, end = max(0, min(begin, blob.size)), min(end, blob.size)
    if end <= begin:
        return 0
    if call.op == ADVISE:
        blob.advise(begin, end - begin)
        return 0
    if call.op == READ:
        done = blob.read_into(begin, buffer, end - begin)
    else:
        done = blob.read_mapped(begin, buffer, end - begin)
    if done < end - begin:
        raise StorageError(f"{blob.name} ends at byte {begin + done}", "run feedrate verify on the dataset")
    return done
