"""What goes wrong ends with one clear line, on every rank, soon, and what was measured is kept."""

import os
import shutil
import sys
from pathlib import Path

import pytest
from command import feedrate, finished, in_namespace, started, until

from emulator.api import generate
from emulator.record.steps import SPOOL

pytestmark = pytest.mark.mpi


def run_words(dataset: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("run", dataset, "--workload", "unet3d-tiny", "--loader", "direct", "--out", out, *more)


@pytest.mark.parametrize("mpirun", [0, 2])
def test_a_missing_dataset(tmp_path, mpirun):
    done = feedrate(*run_words(tmp_path / "nowhere", tmp_path / "out"), mpirun=mpirun)
    assert done.status == 3
    assert "nowhere" in done.one_line()
    assert not (tmp_path / "out").exists()


def test_an_empty_dataset(tmp_path):
    (tmp_path / "data").mkdir()
    assert "feedrate generate" in feedrate(*run_words(tmp_path / "data", tmp_path / "out")).one_line()


def test_too_few_samples_for_a_later_count_are_refused_before_the_first(tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    generate(data, "tiny", files=16)
    done = feedrate("sweep", data, "-w", "unet3d-tiny", "--loader", "direct", "--counts", "2,6", "--out", out)
    assert done.status == 3
    assert "feedrate generate --files 24 adds" in done.one_line()
    assert "MPI_ABORT" not in done.err + done.out and not out.exists()


@pytest.mark.long
@pytest.mark.parametrize("loader", ["direct", "torch"])
def test_a_dataset_that_moves_away_is_one_line(tiny, tmp_path, loader):
    data = shutil.copytree(tiny, tmp_path / "data")
    words = run_words(data, tmp_path / "out", "--steps", "400", "--loader", loader, "-n", 2)
    with started(*words) as process:
        assert until(lambda: process.poll() is not None or any((tmp_path / "out" / SPOOL).glob("*.steps")))
        data.rename(tmp_path / "away")
        _, said = process.communicate(timeout=120)
    errors = [line for line in said.splitlines() if "kept what was measured" not in line]
    # Status 4: a worker of the next epoch opens the dataset's table again.
    assert process.returncode in (3, 4), said
    assert len(errors) == 1 and str(data) in errors[0] and "check" in errors[0], said


def test_an_out_that_cannot_be_made(tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = feedrate(*run_words(tiny, tmp_path / "file" / "out"))
    assert done.status == 4
    assert "Not a directory" in done.one_line()


@pytest.mark.parametrize(
    ("options", "said", "steps"),
    [("size=1m,ro", "Read-only file system", 1), ("size=400k", "No space left on device", 3000)],
    ids=["read only", "full"],
)
def test_an_out_that_cannot_be_written(tiny, tmp_path, options, said, steps):
    """400 KB take the result's first file, but not the step log of 2,000 steps and a second process."""
    out = tmp_path / "mount" / "out"
    out.parent.mkdir()
    quick = ("--steps", steps, "--cache", "warm", "--set", "accelerator.step_seconds=0")
    words = (sys.executable, "-m", "emulator", *run_words(tiny, out, "-n", 4, *quick))
    done = in_namespace(f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"', out.parent, *words)
    assert done.status == 4, done.err
    line = done.one_line()
    assert said in line and "choose another folder" in line


def test_no_mpi(tiny, tmp_path):
    """A Python of its own that sees our packages but no mpirun: ranks of one host need none."""
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").symlink_to(sys.executable)
    command = [bare / "python3", "-m", "emulator", *run_words(tiny, tmp_path / "out", "-n", 2, "--steps", 2)]
    packages = os.pathsep.join(path for path in sys.path if path)
    done = finished(command, PATH=str(bare), PYTHONPATH=packages)
    assert done.status == 0, done.err


@pytest.mark.parametrize(
    ("damage", "loader"),
    [
        ("garbage", "direct"),
        pytest.param("gone", "torch", marks=pytest.mark.long),
        pytest.param("truncated", "torch", marks=pytest.mark.long),
    ],
)
def test_a_damaged_sample_is_named(tiny, tmp_path, damage, loader):
    """By a rank; tests/contracts has every loader and damage."""
    data = tmp_path / "data"
    shutil.copytree(tiny, data)
    sample = sorted(data.rglob("*.npz"))[40]
    if damage == "truncated":
        os.truncate(sample, sample.stat().st_size // 2)
    elif damage == "garbage":
        sample.write_bytes(os.urandom(sample.stat().st_size))
    else:
        sample.unlink()
    done = feedrate(*run_words(data, tmp_path / "out", "-n", 2, "--loader", loader, "--epochs", 1))
    assert done.status == 3
    assert sample.name in done.one_line()


@pytest.mark.long
def test_counts_above_the_world_are_refused(tiny, tmp_path):
    words = ("sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1,8", "--out", tmp_path / "out")
    done = feedrate(*words, mpirun=2)
    assert done.status != 0
    assert "needs 8 processes, but only 2 ranks were started" in done.one_line()
    assert not (tmp_path / "out").exists()
