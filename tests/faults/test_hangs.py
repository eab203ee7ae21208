"""Storage that does not answer ends a command within its deadline, with the call and the path in one line."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from faults.harness import complaint, feedrate_struck

from emulator.launch.process import process_state

LIMIT = 3.0
"""Seconds given to --storage-timeout."""
SOON = 60.0
"""Seconds in which a command has ended: the limit, its start, and what busy cores add."""


def slow(name: str) -> object:
    """Another case of a test, for `make test-long`."""
    return pytest.param(name, marks=pytest.mark.long)


def expect_hang(shim: Path, rule: str, path: str, *words: object) -> None:
    limit = ("--storage-timeout", f"{LIMIT:g}s")
    struck = feedrate_struck(shim, f"{rule} mode=hang", *words, *limit)
    assert struck.calls > 0
    assert struck.done.status == 4, struck.done.err
    assert not complaint(struck.done)
    line = struck.done.one_line()
    assert re.search(r"\w+ of \S+ has not answered for \S+ s: the storage hangs", line), line
    assert path in line


@pytest.mark.parametrize("calls", ["open", slow("read"), slow("close")])
def test_verify(shim, tiny, calls):
    expect_hang(shim, f"path={tiny} calls={calls} first=3", str(tiny), "verify", tiny)


@pytest.mark.parametrize("calls", [slow("write"), slow("fsync"), slow("mkdir")])
def test_generate(shim, tmp_path, calls):
    data = tmp_path / "new"
    words = ("generate", data, "--recipe", "tiny", "--files", 32)
    expect_hang(shim, f"path={data} calls={calls}", str(data), *words)


def test_record(shim, tmp_path):
    """The job's own words come after --."""
    words = ("record", "--storage-timeout", f"{LIMIT:g}s", "--out", tmp_path / "hung" / "job", "--", "true")
    struck = feedrate_struck(shim, f"path={tmp_path}/hung calls=mkdir mode=hang", *words, seconds=SOON)
    assert struck.calls > 0 and struck.done.status == 4
    assert "has not answered for" in struck.done.one_line()


@pytest.mark.mpi
@pytest.mark.parametrize(
    ("loader", "rule"),
    [("direct", "calls=open first=4"), pytest.param("torch", "calls=read first=9", marks=pytest.mark.long)],
    ids=["direct", "torch"],
)
def test_run(shim, tiny, tmp_path, loader, rule):
    """The launcher has read the manifest; a sample does not answer: the first one of a reader, or a later."""
    words = ("run", tiny, "-w", "unet3d-tiny", "--loader", loader, "-n", 2, "--out", tmp_path / "out")
    expect_hang(shim, f"path=.npz {rule}", ".npz", *words)


RUN = ("-w", "unet3d-tiny", "--epochs", 500, "-n", 2)
STOPPED = {
    "doctor": ("doctor", "{mount}"),
    "verify": ("verify", "{mount}/data"),
    "generate": ("generate", "{mount}/new", "--recipe", "tiny", "--files", 8),
    "checkpoint": ("checkpoint", "{mount}", "--scale", "1/10000", "--out", "{out}"),
    "report": ("report", "{mount}/data"),
    "plan": ("plan", "{mount}/data"),
    "baseline": ("baseline", "{mount}/data", "--quick", "--out", "{out}"),
}
STOPPED_LATER = {
    "generate": ("generate", "{mount}/out", "--recipe", "tiny", "--files", 4000, "--no-space-check"),
    "run with the direct loader": ("run", "{mount}/data", *RUN, "--loader", "direct", "--out", "{out}"),
    "run with the torch loader": ("run", "{mount}/data", *RUN, "--loader", "torch", "--out", "{out}"),
    "sweep whose OUT hangs": ("sweep", "{tiny}", *RUN, "--loader", "direct", "--out", "{mount}/out"),
    "checkpoint": ("checkpoint", "{mount}/out", "--subset", "--ranks", 2, "--scale", "1/2000", "--writes", 99,
                   "--pause", "0s", "--out", "{out}"),
}  # fmt: skip


@pytest.fixture
def mirror(tiny: Path, tmp_path: Path) -> Iterator[Mirror]:
    """A mount that shows the data set as `data`, and takes files."""
    source = tmp_path / "source"
    shutil.copytree(tiny, source / "data", copy_function=os.link)
    (source / "out").mkdir()
    server = Mirror(source, tmp_path / "mount")
    try:
        yield server
    finally:
        server.end()


@pytest.mark.faults
@pytest.mark.mpi
@pytest.mark.parametrize("verb", STOPPED)
def test_a_mount_whose_server_is_stopped(mirror, tiny, tmp_path, verb):
    """Run as root: a FUSE server gets SIGSTOP, so that its callers cannot be killed."""
    mirror.process.send_signal(signal.SIGSTOP)
    expect_dead_mount(mirror, words_of(STOPPED[verb], mirror, tiny, tmp_path), lambda: True)


@pytest.mark.faults
@pytest.mark.mpi
@pytest.mark.parametrize("verb", STOPPED_LATER)
def test_a_mount_whose_server_is_stopped_in_the_middle(mirror, tiny, tmp_path, verb):
    def at_work() -> bool:
        files = [path for name in ("out", "source/out") for path in (tmp_path / name).rglob("*")]
        with suppress(FileNotFoundError):  # a temporary file has got its name
            return any(path.suffix in (".npz", ".steps", ".part") and path.stat().st_size for path in files)
        return False

    words = words_of(STOPPED_LATER[verb], mirror, tiny, tmp_path)
    expect_dead_mount(mirror, words, at_work)


def words_of(words: tuple[object, ...], mirror: Mirror, tiny: Path, work: Path) -> list[str]:
    return [str(word).format(mount=mirror.mount, tiny=tiny, out=work / "out") for word in words]


def expect_dead_mount(mirror: Mirror, words: list[str], at_work: Callable[[], bool]) -> None:
    """The command ends within its deadline of 4 s, and says which call and which path did not answer."""
    command = [sys.executable, "-m", "emulator", *words, "--storage-timeout", "4s"]
    with (
        tempfile.TemporaryFile("w+") as err,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=err, start_new_session=True) as process,
    ):
        try:
            deadline = time.monotonic() + 30
            while not at_work():
                ended = process.poll() is not None or time.monotonic() > deadline
                assert not ended, f"it never began: {os.pread(err.fileno(), 9999, 0).decode()}"
                time.sleep(0.1)
            mirror.process.send_signal(signal.SIGSTOP)
            begin, family = time.monotonic(), set[int]()
            while process.poll() is None and time.monotonic() < begin + SOON:
                family |= descendants(process.pid)
                time.sleep(0.1)
            process.wait(0)
            seconds = time.monotonic() - begin
            time.sleep(0.5)
            kept = memory_of(family)
            family = {pid for pid in family if process_state(pid) not in ("", "Z") or has_threads(pid)}
        except subprocess.TimeoutExpired:
            pytest.fail(f"{words} did not end")
        finally:
            mirror.end()  # now everything can be killed
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        err.seek(0)
        told = err.read()
    assert process.returncode == 4, told
    assert told.count("feedrate: error:") == 1 and "Traceback" not in told, told
    assert seconds < 14, f"limit and 10 s: {seconds:.1f} s"
    assert not kept, f"left in memory: {kept}"
    named = {int(number) for number in re.findall(r"process (\d+)", told)}
    assert family <= named, f"left behind without a word: {family - named}"
    assert re.search(rf"\w+ of {re.escape(str(mirror.mount))}\S* has not answered for \S+ s", told), told


def memory_of(family: set[int]) -> list[str]:
    """Return what these processes have in memory: names hold the launcher's process id."""
    found = Path("/dev/shm").glob("*feedrate-*")
    return [path.name for path in found if family & set(map(int, re.findall(r"-(\d+)-", path.name)))]


def descendants(pid: int) -> set[int]:
    with suppress(psutil.Error):
        return {pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))}
    return set()


def has_threads(pid: int) -> bool:
    """Return True if a process has threads left, though its first one has ended."""
    return len(list(Path(f"/proc/{pid}/task").glob("*"))) > 1


class Mirror:
    """`source` at `mount`, through a FUSE server of its own."""

    def __init__(self, source: Path, mount: Path) -> None:
        if os.geteuid() or not Path("/dev/fuse").exists() or not shutil.which("fusermount3"):
            pytest.skip("needs root, /dev/fuse and fuse3")
        mount.mkdir()
        self.mount = mount
        self.process = subprocess.Popen(
            ["/usr/bin/python3", Path(__file__).with_name("mirror.py"), source, mount],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        deadline = time.monotonic() + 10
        while not os.path.ismount(mount):
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.end()
                pytest.skip("the FUSE server does not start: apt install python3-fusepy")
            time.sleep(0.1)

    def end(self) -> None:
        """End the server; a second call does nothing. What waits for it gets an error."""
        self.process.kill()
        subprocess.run(["umount", "-l", self.mount], check=False, capture_output=True)
        self.process.wait()
