"""What goes wrong ends with one clear line, on every rank, soon, and what was measured is kept."""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from command import ROOT_AND_OVERSUBSCRIBED, feedrate

from emulator.api import generate
from emulator.record.steps import SPOOL

pytestmark = pytest.mark.mpi


def run_words(dataset: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("run", dataset, "--workload", "unet3d-tiny", "--loader", "direct", "--out", out, *more)


@pytest.mark.parametrize("mpirun", [0, 2])
def test_a_missing_dataset(tmp_path, mpirun):
    done = feedrate(*run_words(tmp_path / "nowhere", tmp_path / "out"), mpirun=mpirun, timeout=30)
    assert done.status == 3
    assert "nowhere" in done.one_line()
    assert not (tmp_path / "out").exists()


def test_an_empty_dataset(tmp_path):
    (tmp_path / "data").mkdir()
    assert "feedrate generate" in feedrate(*run_words(tmp_path / "data", tmp_path / "out")).one_line()


@pytest.mark.parametrize("mpirun", [0, 6])
def test_too_few_samples_for_a_later_count_are_refused_before_the_first(tmp_path, mpirun):
    data, out = tmp_path / "data", tmp_path / "out"
    generate(data, "tiny", files=16)
    words = ("sweep", data, "-w", "unet3d-tiny", "--loader", "direct", "--counts", "2,6", "--out", out)
    done = feedrate(*words, mpirun=mpirun)
    assert done.status == 3
    assert f"feedrate generate {data} --recipe tiny --files 24" in done.one_line()
    assert "MPI_ABORT" not in done.err + done.out and not out.exists()


@pytest.mark.long
@pytest.mark.parametrize("loader", ["direct", "torch"])
def test_a_dataset_that_moves_away_is_one_line(tiny, tmp_path, loader):
    data = shutil.copytree(tiny, tmp_path / "data")
    words = run_words(data, tmp_path / "out", "--steps", "400", "--loader", loader, "-n", 2)
    command = [sys.executable, "-m", "emulator", *map(str, words)]
    environment = {**os.environ, **ROOT_AND_OVERSUBSCRIBED}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        while not any((tmp_path / "out" / SPOOL).glob("*.steps")):
            assert process.poll() is None, process.communicate()
            time.sleep(0.05)
        data.rename(tmp_path / "away")
        _, said = process.communicate(timeout=60)
    errors = [line for line in said.splitlines() if "kept what was measured" not in line]
    # Status 4: a worker of the next epoch opens the dataset's table again.
    assert process.returncode in (3, 4), said
    assert len(errors) == 1 and str(data) in errors[0] and "check" in errors[0], said


def test_an_unknown_key(tiny, tmp_path):
    done = feedrate(*run_words(tiny, tmp_path / "out", "--set", "loader.wrkers=2"))
    assert done.status == 2
    assert "did you mean 'loader.workers'" in done.one_line()


def test_an_out_that_cannot_be_made(tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = feedrate(*run_words(tiny, tmp_path / "file" / "out"))
    assert done.status == 4
    assert "Not a directory" in done.one_line()


def on_tmpfs(options: str, out: Path, *words: object) -> subprocess.CompletedProcess[str]:
    """`feedrate WORDS` where OUT's parent is a tmpfs of its own, in a mount namespace of its own."""
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c"]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this system does not let users make namespaces")
    script = f'mount -t tmpfs -o {options} tmpfs "$0" && exec "$@"'
    out.parent.mkdir(exist_ok=True)
    return subprocess.run(
        [*command, script, out.parent, sys.executable, "-m", "emulator", *map(str, words)],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


@pytest.mark.parametrize(
    ("options", "said"), [("size=32k", "No space left on device"), ("size=1m,ro", "Read-only file system")]
)
def test_an_out_that_cannot_be_written(tiny, tmp_path, options, said):
    out = tmp_path / "mount" / "out"
    done = on_tmpfs(options, out, *run_words(tiny, out, "-n", 2))
    assert done.returncode == 4, done.stderr
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("feedrate: error:"))
    assert said in line and str(out) in line and "choose another folder" in line
    assert "Traceback" not in done.stderr


def test_a_disk_that_fills_up_during_the_run(tiny, tmp_path):
    """400 KB take the result's first file, but not the step log of 2,000 steps and a second process."""
    out = tmp_path / "mount" / "out"
    words = run_words(
        tiny, out, "-n", 4, "--steps", 3000, "--cache", "warm", "--set", "accelerator.step_seconds=0"
    )
    done = on_tmpfs("size=400k", out, *words)
    assert done.returncode == 4, done.stderr
    assert done.stderr.count("feedrate: error:") == 1
    assert "No space left on device" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_mpi(tiny, tmp_path):
    """A Python of its own that sees our packages but no mpirun."""
    bare = tmp_path / "bin"
    bare.mkdir()
    (bare / "python3").symlink_to(sys.executable)
    done = subprocess.run(
        [bare / "python3", "-m", "emulator", *map(str, run_words(tiny, tmp_path / "out"))],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": str(bare), "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )
    assert done.returncode == 5
    assert "no mpirun was found: pip install 'feedrate[mpi]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("damage", "loader"),
    [
        ("garbage", "direct"),
        ("gone", "torch"),
        *(pytest.param("truncated", kind, marks=pytest.mark.long) for kind in ("torch", "direct")),
        pytest.param("garbage", "torch", marks=pytest.mark.long),
        pytest.param("gone", "direct", marks=pytest.mark.long),
    ],
)
def test_a_damaged_sample_is_named(tiny, tmp_path, damage, loader):
    data = tmp_path / "data"
    shutil.copytree(tiny, data)
    sample = sorted(data.rglob("*.npz"))[40]
    if damage == "truncated":
        os.truncate(sample, sample.stat().st_size // 2)
    elif damage == "garbage":
        sample.write_bytes(os.urandom(sample.stat().st_size))
    else:
        sample.unlink()
    out = tmp_path / "out"
    done = feedrate(*run_words(data, out, "-n", 2, "--loader", loader, "--epochs", 1))
    assert done.status == 3
    assert sample.name in done.one_line()


def test_a_hung_mount_is_given_up(tiny, tmp_path):
    """A sample that is a pipe: opening it blocks as a dead server's file does."""
    data = tmp_path / "data"
    shutil.copytree(tiny, data)
    sample = sorted(data.rglob("*.npz"))[40]
    sample.unlink()
    os.mkfifo(sample)
    done = feedrate(
        *run_words(data, tmp_path / "out", "-n", 2, "--epochs", 1, "--set", "loader.stall_timeout=2s"),
        timeout=30,
    )
    assert done.status == 4
    assert "hang" in done.one_line()


def test_counts_above_the_world_are_refused(tiny, tmp_path):
    words = ("sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1,8", "--out", tmp_path / "out")
    done = feedrate(*words, mpirun=2)
    assert done.status != 0
    assert "needs 8 processes, but only 2 ranks were started" in done.one_line()
    assert not (tmp_path / "out").exists()
