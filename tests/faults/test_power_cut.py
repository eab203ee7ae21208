"""A power cut in the middle: what has its name afterwards is right, what was said to be written is there.

As root. Instead of a device mapper, a disk of its own (disk.py) logs every write and every flush; after a cut
it holds what was flushed, and of what came later any blocks. ext4 lies on it.
"""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

import pytest
from faults.campaign import SIZES
from faults.harness import forked, load_verbs
from synthetic_results import plain_sweep

from emulator.plugins.checkpoint import files as checkpoints
from emulator.record.out import RESULT, ResultFolder, read_result

RECORD = struct.Struct("<qq")
"""In the log: offset and bytes of a write, as disk.py has it; a flush has the offset -1."""
SIZE = 48 << 20
BLOCK = 4096
JOBS = Path(__file__).parents[1] / "recorder" / "jobs.py"
CUTS = int(os.environ.get("FEEDRATE_FAULTS_CUTS", "60"))
SEED = os.environ.get("FEEDRATE_FAULTS_SEED", "20261122")
MADE = ("--recipe", "tiny", "--threads", "2", *(f"--set={size}" for size in SIZES))


def shell(*words: object) -> str:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{words}: {done.stderr}"
    return done.stdout.strip()


@dataclass(frozen=True)
class Disk:
    """A disk whose writes are logged."""

    mount: Path
    log: Path

    def now(self) -> int:
        """Return the offset at which its log ends."""
        return self.log.stat().st_size


@contextmanager
def logged_disk(work: Path) -> Iterator[Disk]:
    """A new ext4 on such a disk; skips the test where there is no FUSE, no loop device, or no root."""
    if os.geteuid() or not Path("/dev/fuse").exists() or not shutil.which("mkfs.ext4"):
        pytest.skip("needs root, /dev/fuse, loop devices and mkfs.ext4")
    (work / "fuse").mkdir()
    (work / "ext4").mkdir()
    server = subprocess.Popen(
        ["/usr/bin/python3", Path(__file__).with_name("disk.py"), work / "fuse", str(SIZE), work / "log"],
        stderr=subprocess.DEVNULL,
    )
    loop = ""
    try:
        deadline = time.monotonic() + 20
        while not os.path.ismount(work / "fuse"):
            if server.poll() is not None or time.monotonic() > deadline:
                pytest.skip("the FUSE server does not start: apt install python3-fusepy")
            time.sleep(0.1)
        loop = shell("losetup", "--find", "--show", work / "fuse/disk")
        shell("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", loop)
        shell("mount", loop, work / "ext4")
        yield Disk(work / "ext4", work / "log")
    finally:
        subprocess.run(["umount", work / "ext4"], check=False, capture_output=True)
        if loop:
            subprocess.run(["losetup", "--detach", loop], check=False, capture_output=True)
        subprocess.run(["umount", "-l", work / "fuse"], check=False, capture_output=True)
        server.kill()
        server.wait()


def after_cut(log: bytes, cut: int, random: Random, image: Path) -> None:
    """Write into `image` what the disk holds when the power goes at `cut`, an offset in its log."""
    data, cached, at = bytearray(SIZE), [], 0

    def keep(offset: int, content: bytes) -> None:
        data[offset : offset + len(content)] = content

    while at + RECORD.size <= cut:
        offset, length = RECORD.unpack_from(log, at)
        at += RECORD.size
        if offset < 0:
            for part in cached:
                keep(*part)
            cached = []
        else:
            cached.append((offset, log[at : min(at + length, cut)]))
            at += length
    share = random.choice((0.0, 0.3, 0.7, 1.0))
    for offset, content in cached:  # of the disk's own cache, any blocks
        for start in range(0, len(content), BLOCK):
            if random.random() < share:
                keep(offset + start, content[start : start + BLOCK])
    image.unlink(missing_ok=True)  # the last one may still be mounted in another mount namespace
    image.write_bytes(data)


@contextmanager
def mounted(image: Path, folder: Path) -> Iterator[Path]:
    """The file system on `image`, recovered as after a power cut."""
    folder.mkdir(exist_ok=True)
    shell("mount", "-o", "loop", image, folder)
    try:
        yield folder
    finally:
        shell("umount", folder)


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    load_verbs()


def over_all_cuts(act: Callable[[Disk], None], check: Callable[[Path, int, Path], None]) -> None:
    """`act` once, then `check(disk, cut, work)` after each of many power cuts."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="feedrate-cuts-", dir=memory) as folder:
        work = Path(folder)
        with logged_disk(work) as disk:
            begin = disk.now()
            act(disk)
            end = disk.now()
        log = (work / "log").read_bytes()
        random = Random(f"{SEED}/power cut")
        for number in range(CUTS):
            cut = random.randint(begin, end)
            after_cut(log, cut, random, work / "image")
            with mounted(work / "image", work / "after") as disk_after:
                try:
                    check(disk_after, cut, work)
                except AssertionError as error:
                    raise AssertionError(f"FEEDRATE_FAULTS_SEED={SEED}, cut {number}: {error}") from None


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_generate(tmp_path):
    reference = tmp_path / "reference"
    assert forked(["generate", str(reference), *MADE, "--files", "24"], tmp_path).status == 0
    whole = {path.name: path.read_bytes() for path in reference.glob("sample_*")}

    def act(disk: Disk) -> None:
        done = forked(["generate", str(disk.mount / "data"), *MADE, "--files", "24"], tmp_path)
        assert done.status == 0, done.err

    def check(disk: Path, cut: int, work: Path) -> None:
        data = disk / "data"
        for path in data.glob("sample_*"):
            if not path.name.endswith(".part"):
                assert path.read_bytes() == whole[path.name], f"{path.name} has its name and other bytes"
        told = forked(["verify", str(data)], work)
        assert told.status in (0, 2, 3, 4) and "Traceback" not in told.err
        complete = {path.name for path in data.glob("sample_*")} == set(whole) and told.status == 0
        assert told.status or complete, f"verify finds nothing wrong: {told.out}"
        done = forked(["generate", str(data), *MADE, "--files", "24"], work)
        assert done.status == 0, done.err
        assert forked(["verify", str(data)], work).status == 0
        assert {path.name: path.read_bytes() for path in data.glob("sample_*")} == whole
        assert not list(data.rglob("*.part"))

    over_all_cuts(act, check)


@pytest.mark.faults
@pytest.mark.timeout(1200)
def test_results_and_checkpoints(tmp_path):
    """Everything that `update` and `commit` have returned from is there afterwards."""
    whole, data = plain_sweep(), os.urandom(50_000)
    told: list[tuple[int, int, int]] = []

    def act(disk: Disk) -> None:
        folder = ResultFolder.create(disk.mount / "out", replace(whole, points=()), force=False)
        root, points, written = disk.mount / "checkpoints", 0, -1
        root.mkdir()
        for number in range(len(whole.points)):
            folder.update(points=whole.points[: number + 1])
            points = number + 1
            told.append((disk.now(), points, written))
            part = checkpoints.begin(root, number, "run")
            with (part / "rank0").open("xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            shard = checkpoints.WrittenFile(name="rank0", size=len(data), crc=0)
            marker = checkpoints.Marker(model="m", ranks=1, data=1, scale="1", seed=0, files=((shard,),))
            checkpoints.commit(part, number, marker)
            written = number
            told.append((disk.now(), points, written))
            if number:
                checkpoints.remove(root / checkpoints.folder_name(number - 1))

    def check(disk: Path, cut: int, work: Path) -> None:
        _, points, written = max((entry for entry in told if entry[0] <= cut), default=(0, 0, -1))
        if points:
            found = read_result(disk / "out").points
            assert found == whole.points[: len(found)] and len(found) >= points
        elif (disk / "out" / RESULT).exists():
            read_result(disk / "out")
        there = checkpoints.complete(disk / "checkpoints")
        assert written < 0 or max(there) >= written, f"checkpoint {written} is lost: {there}"
        for number in there:
            if number >= written:
                place = disk / "checkpoints" / checkpoints.folder_name(number)
                assert checkpoints.read_marker(disk / "checkpoints", number).ranks == 1
                assert (place / "rank0").read_bytes() == data

    over_all_cuts(act, check)
