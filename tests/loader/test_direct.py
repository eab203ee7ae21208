"""The direct loader: every byte, none kept, nothing heavy imported."""

from __future__ import annotations

import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from command import finished, until
from contracts.loader_contract import (
    SPEC,
    Files,
    LoaderContract,
    MakeLoader,
    files,
    pipe,
    whole_files,
    write_files,
)
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from emulator.storage.posix import PosixStorage, probe_direct

__all__ = ["files", "pipe"]


@pytest.fixture
def loader(maker) -> MakeLoader:  # type: ignore[no-untyped-def]
    return maker("direct")


class TestDirect(LoaderContract):
    def test_no_more_than_prefetch_batches_are_read_ahead(self, loader: MakeLoader, files: Files) -> None:
        storage = files.storage()
        arriving = loader(files, storage=storage).read(files.batches(1))
        next(arriving)
        ahead = files.bytes_of(whole_files((0, 1, 2, 3)))
        assert until(lambda: storage.stats.snapshot().bytes >= ahead)
        time.sleep(0.1)
        assert storage.stats.snapshot().bytes == ahead


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return write_files(tmp_path_factory.mktemp("few"), "npz", 6)


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pages=st.integers(1, 40),
    workers=st.integers(1, 6) | st.integers(16, 19),
    batch_size=st.sampled_from([1, 100]),  # io_uring reads small samples of large batches
    prefetch=st.integers(0, 5),
    direct=st.booleans(),
    order=st.lists(st.lists(st.integers(0, 5), min_size=1, max_size=4).map(tuple), max_size=6),
)
def test_whatever_the_knobs_every_byte_is_read_once(  # type: ignore[no-untyped-def]
    maker,
    few: Files,
    pages: int,
    workers: int,
    batch_size: int,
    prefetch: int,
    direct: bool,
    order: list[tuple[int, ...]],
) -> None:
    storage = PosixStorage(few.folder, direct=direct and probe_direct(few.folder), cache="cold")
    spec = replace(SPEC, block_bytes=4096 * pages, workers=workers, batch_size=batch_size, prefetch=prefetch)
    made = maker("direct")(few, spec, storage)
    portions = [whole_files(files) for files in order]
    assert [batch.bytes for batch in made.read(portions)] == [few.bytes_of(portion) for portion in portions]
    assert storage.stats.snapshot().bytes == sum(few.bytes_of(portion) for portion in portions)
    made.close()


def test_memory_stays_where_it_was_over_2000_steps(maker, few: Files) -> None:  # type: ignore[no-untyped-def]
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096

    made = maker("direct")(few)
    order = [whole_files((step % 6, (step + 1) % 6)) for step in range(2000)]
    for _ in made.read(order[:500]):
        pass
    before = resident()
    assert sum(batch.samples for batch in made.read(order)) == 4000
    assert abs(resident() - before) < 0.02 * before


HUNG = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from contracts.loader_contract import SPEC, Files, whole_files
from dataclasses import replace
from emulator.errors import StorageError
from emulator.loader import make_loader

files = Files(Path(sys.argv[1]), "npz", ("pipe",), (1000,))
loader = make_loader("direct", replace(SPEC, stall_timeout=0.3), files.storage(), files)
try:
    list(loader.read([whole_files((0,))]))
except StorageError as error:
    print(error)
loader.close()
"""


def test_a_hung_read_does_not_keep_the_process_alive(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    tests = Path(__file__).parents[1]
    done = finished([sys.executable, "-c", HUNG, tmp_path, tests])
    assert (done.status, done.err) == (0, "")
    assert done.out.startswith("no batch for 300 ms: the storage hangs")
