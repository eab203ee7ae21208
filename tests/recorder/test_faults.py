"""Page faults in mapped files."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator.plugins.recorder.faults import Faults, Touched, _parse
from emulator.plugins.recorder.pattern import faults_of, kept_places
from emulator.plugins.recorder.reads import Reads, Reduction

PAGE = mmap.PAGESIZE
TOUCH = """
import mmap, sys, threading
for line in sys.stdin:
    path, *places = line.split()
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    for before, place in zip(["", *places], places):
        if before == "thread":
            thread = threading.Thread(target=mapped.__getitem__, args=(int(place),))
            thread.start()
            thread.join()
        elif place != "thread":
            mapped[int(place)]
    print(flush=True)
    del mapped
"""


class Toucher:
    """A process that maps a file, and touches some of its bytes, those after "thread" in a new thread."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", TOUCH]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.touch(Path(__file__), 0)  # it has started

    def touch(self, path: Path, *places: object) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        print(path, *places, file=self.process.stdin, flush=True)
        self.process.stdout.readline()

    def end(self) -> None:
        self.process.communicate()


@pytest.fixture
def toucher() -> Iterator[Toucher]:
    one = Toucher()
    yield one
    one.end()


def faults_in(process: int) -> Faults:
    try:
        return Faults(process)
    except OSError as error:
        pytest.skip(f"perf_event_open: {error.strerror}")


def test_the_pages_that_a_process_touches_are_seen_in_order(tmp_path: Path, toucher: Toucher) -> None:
    files = [tmp_path / "one", tmp_path / "two"]
    for file in files:
        file.write_bytes(bytes(3 * 2**21))
    seen = faults_in(toucher.process.pid)
    places = [2**21 + 5, 0, 2**22]  # the kernel may map 2 MiB at once
    for file in (*files, files[0]):
        toucher.touch(file, *places)
    found = seen.read()
    toucher.end()
    found += [*seen.read(), *seen.close()]
    expected = [place - place % PAGE for place in places]
    assert found == [Touched(os.fsencode(file), expected) for file in (*files, files[0])]


def test_pages_that_a_new_thread_touches_are_seen(tmp_path: Path, toucher: Toucher) -> None:
    """As blosc2's, which end with their array."""
    (tmp_path / "file").write_bytes(bytes(3 * 2**21))
    seen = faults_in(toucher.process.pid)
    toucher.touch(tmp_path / "file", 2**22, "thread", 2**21)
    assert [*seen.read(), *seen.close()] == [Touched(os.fsencode(tmp_path / "file"), [2**22, 2**21])]


def test_faults_of_other_memory_do_not_count(tmp_path: Path) -> None:
    """A hundred times as many as the buffer holds, in memory that takes the place of a file's map."""
    (tmp_path / "file").write_bytes(bytes(PAGE))
    here = faults_in(os.getpid())
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == 0
    for _ in range(100):
        np.ones(8192 * PAGE, np.uint8)
    assert {one.path for one in [*here.read(), *here.close()]} <= {os.fsencode(tmp_path / "file")}


def test_where_records_were_lost_no_fault_is_in_a_file_until_the_next_map() -> None:
    maps: list[tuple[int, object]] = []
    samples: list[object] = []
    lost = struct.pack("IHHQQQQ", 2, 0, 40, 7, 9, 1 << 32 | 1, 30)
    sample = struct.pack("IHHQQQ", 9, 2, 32, 1 << 32 | 1, 20, 4096)
    _parse(sample + sample + lost + sample, maps, samples)  # type: ignore[arg-type]
    assert maps == [(30, None)] and [len(rows) for rows in samples] == [2, 1]  # type: ignore[arg-type]


def test_a_sample_has_the_pages_that_faulted_in_its_map(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(bytes(PAGE))
    reduction, path = Reduction(), os.fsencode(tmp_path / "file")
    for offsets in ([0, 65536], [8192], [0]):
        reduction.faulted("loader", Touched(path, offsets))
    reduction.faulted("loader", Touched(b"/usr/lib/x.so", [0]))
    reads = reduction.seen("loader", {}, sizes_only=False)
    assert reads.faulted == ((0, 1), (65536, 0), (8192, 1), (0, 1))
    places = kept_places(faults_of(reads))
    assert sorted(places) == [(0, PAGE), (0, PAGE, 65536, PAGE), (8192, PAGE)]
    assert kept_places(faults_of(Reads())) == ()
