"""`feedrate checkpoint` with real ranks: figures that add up; what is left when ranks die or disks fill."""

import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from command import ROOT_AND_OVERSUBSCRIBED, feedrate

from emulator.checkpoint import folder as place
from emulator.checkpoint.files import Hands, read_file
from emulator.record.store import read_result
from emulator.storage.posix import PosixStorage

pytestmark = pytest.mark.mpi


def words(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("checkpoint", data, "-m", "llama3-8b", "--pause", "0s", "--out", out, *more)


def verified(root: Path) -> list[int]:
    """Numbers of the checkpoints that look complete, once every byte of them was compared."""
    found = place.complete(root)
    with Hands(2, 1 << 20) as hands:
        for number in found:
            marker = place.read_marker(root, number)
            assert len(marker.files) == marker.ranks
            for written in (one for files in marker.files for one in files):
                read_file(
                    PosixStorage(root, direct=False, cache="cold"), place.name_of(number), written, hands
                )
    return found


def test_a_run_its_report_and_a_restore_of_its_own(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    more = ("-n", 2, "--scale", "1/4000")
    done = feedrate(*words(data, out, *more, "--writes", 2, "--reads", 1, "--keep"))
    assert done.status == 0, done.err
    result = read_result(out)
    assert (result.kind, result.status) == ("checkpoint", "complete")
    assert [one.direction for one in result.checkpoints] == ["write", "write", "read"]
    for one in result.checkpoints:
        assert one.bytes == pytest.approx(14 * 8_030_261_248 / 4000, rel=1e-4) and one.ranks == 2
        assert one.bytes_per_second == pytest.approx(one.bytes / one.seconds)
        assert 0 < one.fastest_seconds <= one.seconds
        assert one.resident_share in (None, 0.0)
    assert [flag.name for flag in result.flags] == ["not-by-rules"]
    assert verified(data / place.FOLDER) == [0, 1]
    page = tmp_path / "page.html"
    shown = feedrate("report", out, "--html", page)
    assert "2 ranks write a checkpoint of 28.1 MB in" in shown.out and "Mean of the checkpoints" in shown.out
    assert "How long does a checkpoint take?" in page.read_text()

    damaged = next(
        path for path in (data / place.FOLDER / "checkpoint-000001").iterdir() if "opt" in path.name
    )
    with damaged.open("r+b") as file:
        file.seek(5000)
        file.write(b"wrong")
    done = feedrate(*words(data, tmp_path / "again", *more, "--writes", 0, "--reads", 2, "--keep"))
    assert done.status == 3 and damaged.name in done.one_line() and "checksum" in done.one_line()
    again = read_result(tmp_path / "again")
    assert again.status == "incomplete" and [one.number for one in again.checkpoints] == [0]
    assert "is not what was written: its checksum" in " ".join(
        feedrate("report", tmp_path / "again").out.split()
    )


@pytest.fixture
def started(tmp_path):
    """Begins a long run of three ranks that writes checkpoint after checkpoint; ends what a test leaves."""
    processes = []

    def begin() -> subprocess.Popen[str]:
        more = words(tmp_path / "data", tmp_path / "out", "-n", 3, "--scale", "1/4000", "--writes", 800)
        command = [sys.executable, "-m", "emulator", *map(str, more), "--reads", "0", "--keep", "--force"]
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, start_new_session=True,
            env={**os.environ, **ROOT_AND_OVERSUBSCRIBED},
        )  # fmt: skip
        processes.append(process)
        return process

    (tmp_path / "data").mkdir()
    yield begin
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


def within_a_write(root: Path, old: set[Path], delay: float) -> None:
    """Return `delay` seconds after a checkpoint was begun that is not one of `old`."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if set(place.unfinished(root)) - old:
            time.sleep(delay)
            return
        time.sleep(0.001)
    pytest.fail("no checkpoint was begun within 60 s")


def kill(process: subprocess.Popen[str], everything: bool, luck: random.Random) -> None:
    """SIGKILL to one rank, or to the command, mpirun and every rank at once."""
    children = psutil.Process(process.pid).children(recursive=True)
    ranks = [child for child in children if "python" in child.name() and "emulator" in child.cmdline()]
    assert len(ranks) == 3
    for victim in [psutil.Process(process.pid), *children] if everything else [luck.choice(ranks)]:
        victim.kill()
    process.wait(30)
    psutil.wait_procs(children, timeout=30)


def rounds(begin, root: Path, count: int, luck: random.Random) -> None:
    for turn in range(count):
        everything = turn % 2 == 0
        old, known = set(place.unfinished(root)), len(place.complete(root))
        process = begin()
        within_a_write(root, old, luck.uniform(0, 0.08))
        kill(process, everything, luck)
        assert process.returncode != 0
        found = verified(root)
        assert len(found) >= known, "a kill never takes a complete checkpoint"
        if not everything:  # the command survived and swept up
            assert place.unfinished(root) == []
            assert re.search(r"removed checkpoint-\S+, which was unfinished|complete", process.stderr.read())
        for number in found[:-2]:
            place.remove(root / place.name_of(number))


def test_a_kill_at_any_moment_leaves_nothing_that_looks_complete(started, tmp_path):
    root = tmp_path / "data" / place.FOLDER
    rounds(started, root, 1, random.Random())
    (root / "checkpoint-999998.dead.part").mkdir()  # whatever the kill above left, and this
    done = feedrate(
        *words(tmp_path / "data", tmp_path / "next", "-n", 1, "--scale", "1/99999"),
        "--writes",
        1,
        "--reads",
        1,
    )
    assert done.status == 0, done.err
    assert "removed checkpoint-999998.dead.part" in done.out
    assert place.unfinished(root) == []


@pytest.mark.long
@pytest.mark.timeout(400)
def test_many_kills(started, tmp_path):
    rounds(started, tmp_path / "data" / place.FOLDER, 24, random.Random())


def on_a_tmpfs(data: Path, size: str, script: str, *more: object) -> subprocess.CompletedProcess[str]:
    """`feedrate MORE` on a tmpfs of its own, in a mount namespace of its own, while `script` runs."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let users make namespaces")
    line = f'mount -t tmpfs -o {size} tmpfs "$0" && cd "$0" && {{ {{ {script}; }} >/dev/null 2>&1 & }}; '
    line += '"$@"; status=$?; find "$0" -name "checkpoint-*" -type d; exit $status'
    return subprocess.run(
        [*command, line, data, sys.executable, "-m", "emulator", *map(str, more)],
        capture_output=True, text=True, timeout=90, check=False,
    )  # fmt: skip


def test_a_full_disk_is_one_line_and_what_was_begun_is_removed(tmp_path):
    """There is room for four when it is looked at; after the first one somebody else takes it."""
    (tmp_path / "data").mkdir()
    other = (
        "while [ ! -d feedrate-checkpoints/checkpoint-000000 ]; do sleep 0.02; done; "
        "head -c 90000000 /dev/zero > other"
    )
    done = on_a_tmpfs(
        tmp_path / "data", "size=130m", other,
        *words(tmp_path / "data", tmp_path / "out", "-n", 2, "--scale", "1/4000", "--keep"),
        "--writes", 4, "--pause", "1s",
    )  # fmt: skip
    assert done.returncode == 4, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("feedrate: error:")]
    assert len(lines) == 1 and "No space left on device" in lines[0] and "free some space" in lines[0]
    assert re.findall(r"/(checkpoint-\S+)", done.stdout) == ["checkpoint-000000"]
    assert "No space left" in (tmp_path / "out" / "failure.txt").read_text()


@pytest.mark.parametrize(
    ("more", "status", "said"),
    [
        (("-m", "llama3-70b", "-n", 3), 2, "a copy of llama3-70b takes 8 ranks"),
        (("-n", 8), 2, "choose fewer --writes, or a --scale below 1"),
        (("-n", 2, "--scale", "3"), 2, "1/1000"),
        (("-n", 2, "--scale", "1/9999", "--writes", 0), 2, "write some with --writes and --keep"),
    ],
)
def test_what_cannot_be_is_one_line(tmp_path, more, status, said):
    (tmp_path / "data").mkdir()
    done = feedrate(*words(tmp_path / "data", tmp_path / "out"), *more)
    assert done.status == status and said in done.one_line()
    assert not list((tmp_path / "data").iterdir())


def test_no_folder(tmp_path):
    done = feedrate(*words(tmp_path / "nowhere", tmp_path / "out", "-n", 2))
    assert done.status == 4 and "there is no folder" in done.one_line()
