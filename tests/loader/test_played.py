"""Loaders that play recorded batches."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from emulator.calls import ADVISE, CALL, END, MAP, NEXT, OPEN, READ, Calls, Cast
from emulator.config.workload import LoaderSpec
from emulator.dataset.manifest import Manifest
from emulator.dataset.names import Listed
from emulator.errors import DatasetError
from emulator.loader import make_loader
from emulator.order import Portion
from emulator.storage.posix import PosixStorage

SIZES = [40_000, 41_000, 42_000, 43_000]
SPEC = LoaderSpec(batch_size=2, workers=2, prefetch=4, crop=())


def files(folder: Path) -> Manifest:
    for number, size in enumerate(SIZES):
        (folder / str(number)).write_bytes(bytes(size))
    names = Listed.of(map(str, range(len(SIZES))))
    return Manifest(format="bytes", names=names, sizes=np.array(SIZES))


def calls(threads: int = 1, gap: float = 0.0, op: int = READ) -> Calls:
    """Two batches of two files: a header, and all the rest up to the end."""
    rows = []
    for batch in range(2):
        for visit in (2 * batch, 2 * batch + 1):
            place = (visit, visit, SIZES[0], visit % threads)
            rows.append((batch, *place, OPEN, NEXT, 0, 0, gap))
            rows.append((batch, *place, ADVISE, NEXT, 0, 4096, 0.0))
            rows.append((batch, *place, READ, NEXT, 0, 4096, 0.0))
            rows.append((batch, *place, op, NEXT, 4096, SIZES[0] - 4096, 0.0))
        rows.append((batch, -1, -1, 0, 0, END, NEXT, 0, 0, gap))
    return Calls(np.array(rows, CALL))


def portions(recorded: Calls, steps: int) -> list[Portion]:
    cast = Cast(recorded, np.array(SIZES), 2, 2)
    return [portion for portion, _ in zip(cast.portions(2, 0, 1, 0, 0), range(steps), strict=False)]


@pytest.mark.parametrize("cache", ["warm", "cold"])
@pytest.mark.parametrize("prefetch", [4, 0])
@pytest.mark.parametrize(("threads", "op"), [(1, READ), (2, READ), (1, MAP)])
@pytest.mark.parametrize("kind", ["direct", "torch"])
def test_batches_make_the_recorded_calls(kind, threads, op, prefetch, cache, tmp_path):
    manifest, recorded = files(tmp_path), calls(threads, op=op)
    storage = PosixStorage(tmp_path, direct=False, cache=cache)
    loader = make_loader(kind, replace(SPEC, prefetch=prefetch), storage, manifest, calls=recorded)
    found = list(loader.read(portions(recorded, 2)))
    loader.close()
    # Of a file that is longer than the recorded one, the last read has all the rest.
    assert [batch.samples for batch in found] == [2, 2] and sum(batch.bytes for batch in found) == sum(SIZES)
    assert storage.stats.snapshot().reads == 8


@pytest.mark.parametrize(("kind", "prefetch"), [("direct", 4), ("torch", 4), ("torch", 0)])
def test_a_batch_takes_as_long_as_the_cpu_time_between_its_calls(kind, prefetch, tmp_path):
    manifest, recorded = files(tmp_path), calls(gap=40_000.0)
    storage = PosixStorage(tmp_path, direct=False, cache="warm")
    loader = make_loader(kind, replace(SPEC, workers=1, prefetch=prefetch), storage, manifest, calls=recorded)
    first, *_, last = loader.read(portions(recorded, 4))
    loader.close()
    assert last.ready - first.ready > 3 * 0.11


@pytest.mark.parametrize("kind", ["direct", "torch"])
def test_a_file_that_is_gone_is_one_clear_error(kind, tmp_path):
    manifest, recorded = files(tmp_path), calls()
    for number in range(4):
        (tmp_path / str(number)).unlink()
    loader = make_loader(
        kind, SPEC, PosixStorage(tmp_path, direct=False, cache="warm"), manifest, calls=recorded
    )
    with pytest.raises(DatasetError, match="is not there"):
        list(loader.read(portions(recorded, 2)))
    loader.close()
