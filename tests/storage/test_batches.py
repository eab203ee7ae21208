"""Batches of reads: io_uring, preadv in C and preadv in Python give the same bytes, counts and errors."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from command import until

from emulator.errors import DatasetError, StorageError
from emulator.storage import batches
from emulator.storage.base import HEAD
from emulator.storage.batches import (
    CANCELLED,
    CUT_SHORT,
    DIRECT,
    EVICT,
    GOOD,
    WRONG_SIZE,
    BatchReader,
    Engine,
    Pieces,
)
from emulator.storage.posix import PosixStorage, aligned_buffer, evict, probe_direct, resident_pages

_reads: Any = batches._reads
ENGINES: list[Engine] = ["python"]
if _reads is not None:
    ENGINES += ["threads", *["io_uring"] * batches.has_ring()]  # type: ignore[list-item]
SIZES = (0, 1, 100, 4095, 4096, 4097, 8192, 10_001, 65_536, 200_000, 300_001)
DEPTH = 3


def test_the_module_is_built_where_a_compiler_is() -> None:
    """`make install` builds it; a worktree whose environment was copied reads with Python."""
    built = list((Path(batches.__file__).parent).glob("_reads*.so"))
    if not built:
        pytest.skip("the C module was not built here")
    assert _reads is not None


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for size in SIZES:
        (tmp_path / f"f{size}").write_bytes(Random(size).randbytes(size))
    (tmp_path / "folder").mkdir()
    return tmp_path


Scan = tuple[int, int, batches.Failure, bytes]


def scan(
    engine: Engine, folder: Path, names: Sequence[str], rows: Sequence[tuple[int, ...]], **how: Any
) -> Scan:
    """Scan once; returns bytes, requests, failure and heads."""
    direct, block = how.get("direct", False), how.get("block", 8192)
    table = np.array(rows, np.int64).reshape(-1, 4)
    heads = bytearray(HEAD * len(rows)) if len(rows) and rows[0][0] < 0 else bytearray()
    buffer = aligned_buffer(DEPTH * (block + 2 * HEAD) if direct else HEAD + 8192)
    cancelled, text = bytearray([how.get("cancelled", 0)]), memoryview(bytearray(960))
    paths = "".join(f"{folder / name}\0" for name in names).encode()
    flags = DIRECT * direct + EVICT * how.get("evicts", False)
    run = batches._scan if engine == "python" else _reads.scan
    ring = _reads.ring(DEPTH) if engine == "io_uring" else None
    size, _, seconds, failure = run(ring, paths, table, heads, cancelled, buffer, block, 8192, flags, text)
    return size, len(seconds) // 8, failure, bytes(heads)


def alike(folder: Path, names: Sequence[str], rows: Sequence[tuple[int, ...]], **how: Any) -> Scan:
    """Scan with every engine, and return what they agree on."""
    engines = [engine for engine in ENGINES if engine != "io_uring" or how.get("direct")]
    first, *others = (scan(engine, folder, names, rows, **how) for engine in engines)
    for other in others:
        # After an error, an engine may have begun other rows.
        assert other == first or (first[2] != GOOD != other[2] and first[2][1:] == other[2][1:])
    return first


def whole(size: int, stated: int | None = None) -> tuple[int, int, int, int]:
    stated = size if stated is None else stated
    return -1, 0, stated, stated


def needs(folder: Path, direct: bool) -> None:
    if direct and not probe_direct(folder):
        pytest.skip("this file system has no O_DIRECT")


@pytest.mark.parametrize("evicts", [False, True])
def test_a_file_leaves_the_page_cache_before_it_is_read(folder: Path, evicts: bool) -> None:
    """Read-ahead brings back the pages at its begin, but not those at its end."""
    path = folder / "large"
    path.write_bytes(bytes(2**22))
    with path.open("rb") as file:
        os.fsync(file.fileno())
        evict(file.fileno())
        if resident_pages(file.fileno(), 0, 2**22)[1]:
            pytest.skip("this file system keeps its files in RAM")
        for engine in set(ENGINES) - {"io_uring"}:
            file.seek(0)
            file.read()
            scan(engine, folder, ["large"], [(-1, 0, HEAD, 2**22)], evicts=evicts)
            pages, resident = resident_pages(file.fileno(), 2**21, 2**21)
            assert resident == (0 if evicts else pages)


@pytest.mark.parametrize("direct", [False, True])
def test_whole_files(folder: Path, direct: bool) -> None:
    needs(folder, direct)
    names, rows = [f"f{size}" for size in SIZES], [whole(size) for size in SIZES]
    size, requests, failure, heads = alike(folder, names, rows, direct=direct)
    assert (size, requests, failure) == (sum(SIZES), sum(max(1, -(-one // 8192)) for one in SIZES), GOOD)
    for at, name in enumerate(names):
        content = (folder / name).read_bytes()[:HEAD]
        assert heads[at * HEAD : at * HEAD + len(content)] == content
    random = Random(1)
    for _ in range(60):
        some = random.choices(SIZES, k=random.randrange(9))
        how = {"direct": direct, "block": 4096 * random.randrange(1, 30)}
        found = alike(folder, [f"f{size}" for size in some], [whole(size) for size in some], **how)
        assert found[0] == sum(some) and found[2] == GOOD


@pytest.mark.parametrize("direct", [False, True])
def test_pieces_of_open_files(folder: Path, direct: bool) -> None:
    needs(folder, direct)
    fd = os.open(folder / "f300001", os.O_RDONLY | (os.O_DIRECT if direct else 0))
    random = Random(2)
    try:
        for _ in range(60):
            begins = [random.randrange(300_001) for _ in range(random.randrange(1, 6))]
            rows = [(fd, begin, random.randrange(300_002 - begin), 300_001) for begin in begins]
            how = {"direct": direct, "block": 4096 * random.randrange(1, 30)}
            size, _, failure, _ = alike(folder, ["f300001"] * len(rows), rows, **how)
            assert failure == GOOD and size >= sum(row[2] for row in rows)
        failure = alike(folder, ["f300001"], [(fd, 299_000, 2000, 301_000)], direct=direct)[2]
        assert failure == (0, CUT_SHORT, 300_001, 1)
    finally:
        os.close(fd)


@pytest.mark.parametrize("direct", [False, True])
def test_what_is_wrong_is_found(folder: Path, direct: bool) -> None:
    needs(folder, direct)
    for size in SIZES:
        for stated in {size + 1, size + 4096, size + 5000, 2 * size, max(0, size - 1), max(0, size - 4096)}:
            found = alike(folder, ["f1", f"f{size}"], [whole(1), whole(size, stated)], direct=direct)
            assert stated == size or found[2] == (1, WRONG_SIZE, size, 1)
    for name, code in (("nothing", errno.ENOENT), ("f100/inside", errno.ENOTDIR)):
        assert alike(folder, [name], [whole(5)], direct=direct)[2] == (0, code, 0, 0)
    assert alike(folder, ["folder"], [whole(5)], direct=direct)[2][1] in (errno.EISDIR, errno.EINVAL)
    assert alike(folder, ["f1"], [whole(1)], direct=direct, cancelled=1)[2] == (0, CANCELLED, 0, 1)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_reader_keeps_files_open_counts_and_names_what_is_wrong(folder: Path, engine: Engine) -> None:
    needs(folder, True)
    before = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    storage = PosixStorage(folder, direct=True, cache="cold")
    heads: list[tuple[bytes, int, str]] = []
    with BatchReader(storage, engine, DEPTH, 65_536, 2) as reader:
        parts = [(0, 0, 100, 65_536), (0, 5000, 4000, 65_536), (0, 0, 1, 10_001), (0, 0, 1, 8192)]
        pieces = Pieces(["f65536", "f65536", "f10001", "f8192"], np.array(parts, np.int64))
        assert reader.read(pieces, lambda *_: None, bytearray(1)) == 4102
        assert {"f65536", "f10001", "f8192"} == set(reader._open)
        reader.begin(0)
        assert {"f10001", "f8192"} == set(reader._open)
        files = Pieces(["f100", "f10001"], np.array([whole(100), whole(10_001)], np.int64))
        size = reader.read(
            files, lambda head, size, name: heads.append((bytes(head), size, name)), bytearray(1)
        )
        assert size == 10_101 and [head[1:] for head in heads] == [(100, "f100"), (10_001, "f10001")]
        assert heads[1][0] == (folder / "f10001").read_bytes()[:HEAD]
        counts, tally = storage.stats.snapshot(), storage.stats.mine()
        assert counts.reads == 6 and counts.bytes >= 14_203 and tally.requests == 2
        assert bytes(tally.text).startswith(b"read of " + bytes(folder)) or engine == "io_uring"
        for name, stated, error, what in (
            ("nothing", 5, DatasetError, "nothing is not there"),
            ("f100", 99, DatasetError, "has 100 bytes, but the manifest says 99"),
            ("folder", 9, StorageError, "folder"),
        ):
            with pytest.raises(error, match=what):
                reader.read(
                    Pieces([name], np.array([whole(stated)], np.int64)), lambda *_: None, bytearray(1)
                )
        with pytest.raises(StorageError, match="closed"):
            reader.read(files, lambda *_: None, bytearray([1]))
    assert len(os.listdir("/proc/self/fd")) <= before + 1  # noqa: PTH208  a ring lives as long as its reader


def test_bytes_are_kept_back_to_back(folder: Path) -> None:
    content = (folder / "f10001").read_bytes()
    storage, into = PosixStorage(folder, direct=False, cache="warm"), memoryview(bytearray(18_000))
    with BatchReader(storage, "python", 1, 4096, 1) as reader:
        parts = Pieces(["f10001", "f10001"], np.array([(0, 1001, 9000, 10_001)] * 2, np.int64))
        assert reader.read(parts, lambda *_: None, bytearray(1), into) == 18_000
        assert bytes(into[:9000]) == bytes(into[9000:]) == content[1001:]
        assert storage.stats.snapshot().reads == 6
        files = Pieces(["f10001", "f100"], np.array([whole(10_001), whole(100)], np.int64))
        heads: list[bytes] = []
        reader.read(files, lambda head, *_: heads.append(bytes(head)), bytearray(1), into)
        assert bytes(into[:10_101]) == content + (folder / "f100").read_bytes()
        assert heads == [content[:HEAD], (folder / "f100").read_bytes()]
        os.truncate(folder / "f10001", 7000)
        with pytest.raises(DatasetError, match="ends at byte 7000 of 10001"):
            reader.read(parts, lambda *_: None, bytearray(1), into)


@pytest.mark.skipif(_reads is None, reason="the C module was not built here")
def test_a_read_that_hangs_is_named_and_does_not_hold_pythons_lock(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    text = memoryview(bytearray(960))
    arguments = (
        np.array([whole(5)], np.int64),
        bytearray(),
        bytearray(1),
        aligned_buffer(65_536),
        4096,
        8192,
        0,
    )

    def read() -> None:
        _reads.scan(None, bytes(tmp_path / "pipe") + b"\0", *arguments, text)

    reading = threading.Thread(target=read, daemon=True)
    reading.start()
    until(lambda: bytes(text).startswith(b"read of " + bytes(tmp_path / "pipe") + b"\0"))
    assert reading.is_alive()
    with suppress(BrokenPipeError):  # a pipe has no offsets: its read fails at once
        (tmp_path / "pipe").write_bytes(b"12345")
    reading.join(10)
    assert not reading.is_alive()


@pytest.mark.skipif(_reads is None, reason="the C module was not built here")
def test_arguments_that_do_not_fit_are_refused(folder: Path) -> None:
    good: list[Any] = [None, b"x\0", np.array([whole(5)], np.int64), bytearray(HEAD), bytearray(1)]
    good += [bytearray(20_000), 4096, 4096, 0, bytearray(960)]
    bad: list[tuple[int, Any]] = [(1, b"x"), (3, bytearray(5000)), (4, bytearray()), (5, bytearray(HEAD))]
    bad += [(6, 0), (6, 2**40), (7, 0), (9, bytearray())]
    bad += [(2, np.array([row], np.int64)) for row in ((3, -1, 5, 5), (-1, 5, 5, 5), (3, 0, 2**62, 5))]
    for at, value in bad:
        with pytest.raises(ValueError, match="do not fit"):
            _reads.scan(*good[:at], value, *good[at + 1 :])
    with pytest.raises(ValueError, match="slots"):
        _reads.ring(0)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(_reads is None, reason="the C module was not built here")
def test_sanitizers_find_nothing(tmp_path: Path) -> None:
    """Good and bad arguments at random, with AddressSanitizer and UBSan."""
    source = Path(batches.__file__).parent / "_reads.c"
    built, flags = tmp_path / "_reads.so", ["-g", "-O1", "-shared", "-fPIC", "-fno-sanitize-recover=all"]
    include = f"-I{sysconfig.get_path('include')}"
    subprocess.run(["gcc", *flags, "-fsanitize=address,undefined", include, source, "-o", built], check=True)
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=True
    )
    environment = {**os.environ, "LD_PRELOAD": library.stdout.strip(), "ASAN_OPTIONS": "detect_leaks=0"}
    done = subprocess.run(
        [sys.executable, "-c", FUZZ, built], capture_output=True, text=True, env=environment, check=False
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]


FUZZ = """
import importlib.util, os, random, sys, tempfile
import numpy as np
spec = importlib.util.spec_from_file_location("_reads", sys.argv[1])
reads = importlib.util.module_from_spec(spec)
spec.loader.exec_module(reads)
draw = random.Random(os.environ.get("FUZZ_SEED", "0"))
folder = tempfile.mkdtemp()
paths = [f"{folder}/{size}" for size in (0, 1, 4096, 5000, 100_000)]
for path in paths:
    open(path, "wb").write(os.urandom(int(path.rpartition("/")[2])))
fds = [-1, -1, -2, 99, 2**40]
fds += [os.open(path, os.O_RDONLY | flag) for path in paths for flag in (0, os.O_DIRECT)]
numbers = [0, 1, 4095, 4096, 5000, 100_000, 2**31, 2**62, -1]
ring, done, refused = reads.ring(3), 0, 0
for _ in range(20_000):
    rows, few = [], numbers[: draw.choice((5, 6, 9))]
    for _ in range(draw.randrange(6)):
        fd, length = draw.choice(fds), draw.choice(few)
        rows.append((fd, draw.choice(few) if fd >= 0 else 0, length, draw.choice((draw.choice(few), length))))
    names = b"".join(os.fsencode(draw.choice(paths)) + b"\\0" for _ in rows)
    names = names[: draw.choice((None, None, None, 40))]
    flags, block = draw.choice((0, 1, 1, 2, 3)), draw.choice((4096, 8192, 65536, 0, 100))
    memory = np.zeros(draw.choice((40_960, 300_000)) + 4096, np.uint8)
    memory = memory[-memory.ctypes.data % 4096 :]
    heads = bytearray(draw.choice((0, 0, 4096 * len(rows))))
    try:
        table, cancelled = np.array(rows, np.int64), bytearray([draw.random() < 0.05])
        skim, text = draw.choice((8192, 4096, 0)), bytearray(draw.choice((0, 1, 9, 30, 960)))
        where = draw.choice((None, ring))
        reads.scan(where, names, table, heads, cancelled, memory, block, skim, flags, text)
        done += 1
    except ValueError:
        refused += 1
assert done > 1000 and refused > 1000, (done, refused)
"""
