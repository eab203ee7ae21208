"""`feedrate checkpoint` with real ranks: figures that add up; what is left when ranks die or disks fill."""

import itertools
import os
import random
import re
import signal
import subprocess
import sys
import time
from fractions import Fraction
from pathlib import Path

import psutil
import pytest
from command import feedrate, in_namespace, outlive, ranks_of, started, unless_ended

import emulator
from emulator.config.checkpoint import load_checkpoint_model
from emulator.errors import SpecError
from emulator.launch.comm import Comm
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.cycle import measure
from emulator.plugins.checkpoint.files import ShardIO, read_shard
from emulator.plugins.checkpoint.job import CheckpointJob
from emulator.record.out import read_result
from emulator.storage.posix import PosixStorage

pytestmark = pytest.mark.mpi


def words(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("checkpoint", data, "-m", "llama3-8b", "--pause", "0s", "--out", out, *more)


def verified(root: Path) -> list[int]:
    """Numbers of the checkpoints that look complete, once every byte of them was compared."""
    complete = place.complete(root)
    with ShardIO(2, 1 << 20) as shard_io:
        for number in complete:
            marker = place.read_marker(root, number)
            assert len(marker.files) == marker.ranks
            for written in itertools.chain(*marker.files):
                storage = PosixStorage(root, direct=False, cache="cold")
                read_shard(storage, place.folder_name(number), written, shard_io)
    return complete


def test_a_run_and_its_report(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    data.mkdir()
    done = feedrate(*words(data, out, "-n", 2, "--scale", "1/4000", "--writes", 2, "--reads", 1, "--keep"))
    assert done.status == 0, done.err
    assert "2 ranks write a checkpoint of 28.1 MB in" in done.out and "Mean of the checkpoints" in done.out
    result = read_result(out)
    assert (result.kind, result.status) == ("checkpoint", "complete")
    assert [checkpoint.direction for checkpoint in result.checkpoints] == ["write", "write", "read"]
    for checkpoint in result.checkpoints:
        assert checkpoint.bytes == pytest.approx(14 * 8_030_261_248 / 4000, rel=1e-4)
        assert checkpoint.ranks == 2
        assert checkpoint.bytes_per_second == pytest.approx(checkpoint.bytes / checkpoint.seconds)
        assert 0 < checkpoint.fastest_seconds <= checkpoint.seconds
        assert checkpoint.resident_share in (None, 0.0)
    assert not result.flags
    assert verified(data / place.FOLDER) == [0, 1]


def test_python_runs_as_the_command_does(tmp_path):
    options = {"scale": "1/20000", "set": ["io.workers=1"], "writes": 1, "reads": 1, "pause": "0s"}
    measured = emulator.checkpoint(tmp_path, out=tmp_path / "out", ranks=2, label="mine", **options)
    assert measured.run.label == "mine" and measured.run.workload["io"]["workers"] == 1
    write, read = measured.run.checkpoints
    assert (write.direction, read.direction, write.ranks) == ("write", "read", 2)
    with pytest.raises(SpecError, match="is not empty"):
        emulator.checkpoint(tmp_path, out=tmp_path / "out", ranks=2, **options)


@pytest.fixture
def run(tmp_path):
    """Begins a long run of three ranks that writes checkpoint after checkpoint; ends what a test leaves."""
    processes = []

    def begin() -> subprocess.Popen[str]:
        more = words(tmp_path / "data", tmp_path / "out", "-n", 3, "--scale", "1/4000", "--writes", 800)
        more += ("--reads", 0, "--keep", "--force")
        process = started(*more, stdout=subprocess.DEVNULL, start_new_session=True)
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
    ranks = ranks_of(process)
    assert len(ranks) == 3
    for victim in [psutil.Process(process.pid), *children] if everything else [luck.choice(ranks)]:
        unless_ended(victim.kill, None)  # with the command, ranks end by themselves
    process.wait(60)
    assert not outlive(children, 60)


def rounds(begin, root: Path, count: int, luck: random.Random) -> None:
    for turn in range(count):
        everything = turn % 2 == 0
        old, known = set(place.unfinished(root)), len(place.complete(root))
        process = begin()
        within_a_write(root, old, luck.uniform(0, 0.08))
        kill(process, everything, luck)
        assert process.returncode != 0
        complete = verified(root)
        assert len(complete) >= known, "a kill never takes a complete checkpoint"
        if not everything:  # the command survived and swept up
            assert place.unfinished(root) == [], process.stderr.read()
        for number in complete[:-2]:
            place.remove(root / place.folder_name(number))


def test_a_kill_at_any_moment_leaves_nothing_that_looks_complete(run, tmp_path, capsys):
    root = tmp_path / "data" / place.FOLDER
    rounds(run, root, 1, random.Random())
    before = len(verified(root))
    place.begin(root, 999998, "dead")  # whatever the kill above left, and this
    model = load_checkpoint_model("llama3-8b", ["io.writes=1", "io.reads=1", "io.pause=0s"])
    scale = Fraction(1, 99_999)
    job = CheckpointJob(folder=tmp_path / "data", model=model, scale=scale, out=tmp_path / "next")
    measure(job, Comm())
    said = capsys.readouterr().out.splitlines()
    assert "removed checkpoint-999998.dead.part, which a run that died had left" in said
    assert place.unfinished(root) == [] and len(verified(root)) == before


@pytest.mark.long
@pytest.mark.timeout(400)
def test_many_kills(run, tmp_path):
    rounds(run, tmp_path / "data" / place.FOLDER, 24, random.Random())


@pytest.mark.long
def test_a_full_disk_is_one_line_and_what_was_begun_is_removed(tmp_path):
    """There is room for four when it is looked at; after the first one somebody else takes it."""
    (tmp_path / "data").mkdir()
    other = "while [ ! -d feedrate-checkpoints/checkpoint-000000 ]; do sleep 0.02; done; "
    other += "head -c 90000000 /dev/zero > other"
    line = f'mount -t tmpfs -o size=130m tmpfs "$0" && cd "$0" && {{ {{ {other}; }} >/dev/null 2>&1 & }}; '
    line += '"$@"; status=$?; find "$0" -name "checkpoint-*" -type d; exit $status'
    more = ("-n", 2, "--scale", "1/4000", "--keep", "--writes", 4, "--pause", "1s")
    command = (sys.executable, "-m", "emulator", *words(tmp_path / "data", tmp_path / "out", *more))
    done = in_namespace(line, tmp_path / "data", *command)
    assert done.status == 4, done.err
    assert "No space left on device" in done.one_line() and "free some space" in done.one_line()
    assert re.findall(r"/(checkpoint-\S+)", done.out) == ["checkpoint-000000"]
    assert "No space left" in (tmp_path / "out" / "failure.txt").read_text()
