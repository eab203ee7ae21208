"""Page faults in mapped files."""

from __future__ import annotations

import mmap
import os
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from emulator.plugins.recorder.faults import Fault, Faults, _parse
from emulator.plugins.recorder.pattern import faults_of, kept_places
from emulator.plugins.recorder.reads import Reads, Reduction

PAGE = mmap.PAGESIZE
TOUCH = """
import mmap, sys
for line in sys.stdin:
    path, *places = line.split()
    with open(path, "rb") as file:
        mapped = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
    print([mapped[int(place)] for place in places], flush=True)
    del mapped
"""


class Toucher:
    """A process that maps a file, and touches some of its bytes."""

    def __init__(self) -> None:
        words = [sys.executable, "-c", TOUCH]
        self.process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.touch(Path(__file__), 0)  # it has started

    def touch(self, path: Path, *places: int) -> None:
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
    expected = [
        Fault(os.fsencode(file), place - place % PAGE, first=place == places[0])
        for file in (*files, files[0])
        for place in places
    ]
    assert seen.read() == expected and seen.read() == []
    toucher.end()
    assert seen.read() == []
    seen.close()


def test_faults_of_other_memory_do_not_count(tmp_path: Path, toucher: Toucher) -> None:
    """A hundred times as many as the buffer holds, in memory that takes the place of a file's map."""
    (tmp_path / "file").write_bytes(bytes(PAGE))
    here = faults_in(threading.get_native_id())
    with (tmp_path / "file").open("rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        assert mapped[0] == 0
    for _ in range(100):
        np.ones(8192 * PAGE, np.uint8)
    found = here.read()
    here.close()
    assert {one.path for one in found} <= {os.fsencode(tmp_path / "file")}


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
    for process, offset, first in ((1, 0, True), (2, 8192, True), (1, 65536, False), (2, 0, True)):
        reduction.fault("loader", process, path, offset, first)
    reduction.fault("loader", 1, b"/usr/lib/x.so", 0, first=True)
    reads = reduction.seen("loader", {}, sizes_only=False)
    assert reads.faulted == ((0, 1), (65536, 0), (8192, 1), (0, 1))
    places = kept_places(faults_of(reads))
    assert sorted(places) == [(0, PAGE), (0, PAGE, 65536, PAGE), (8192, PAGE)]
    assert kept_places(faults_of(Reads())) == ()
