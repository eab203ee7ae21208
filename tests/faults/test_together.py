"""Two commands at one place at the same moment: one works, the other is refused, and nothing is lost."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from command import Done, feedrate, outlive, started, until
from s3_server import s3_server

from emulator.record.out import read_result
from emulator.record.steps import read_steps

MADE = ("--recipe", "tiny", "--files", 24, "--threads", 1, "--set", "size.bytes_mean=300kB", "--set",
        "size.bytes_sd=20kB", "--set", "size.bytes_min=200kB")  # fmt: skip


def at_once(*commands: Sequence[object], **environment: str) -> list[Done]:
    """All commands, started together."""
    running = [started(*words, environment=environment) for words in commands]
    told = [process.communicate(timeout=100) for process in running]
    return [Done(process.returncode, *texts, 0) for process, texts in zip(running, told, strict=True)]


def one_worked(ends: Sequence[Done]) -> Done:
    """The one that was refused."""
    worked = [end for end in ends if end.status == 0]
    refused = [end for end in ends if end.status]
    assert len(worked) == 1 and len(refused) == 1, [end.err for end in ends]
    said = ("in use", "not empty", "another dataset")  # the last two, where the other one is done already
    assert any(word in refused[0].one_line() for word in said)
    return refused[0]


def sweep(data: Path, out: Path, *more: object) -> tuple[object, ...]:
    return ("sweep", data, "-w", "unet3d-tiny", "--loader", "direct", "--counts", "1,2", "--steps", 20,
            *(more or ("--out", out)))  # fmt: skip


@pytest.mark.mpi
def test_two_sweeps_at_one_out(tiny, tmp_path):
    """Both once ended with status 0, and the points of one were gone."""
    out = tmp_path / "out"
    one_worked(at_once(sweep(tiny, out), sweep(tiny, out)))
    result = read_result(out)
    assert result.status == "complete" and [point.ranks for point in result.points] == [1, 2]
    assert set(read_steps(out)["point"]) == {0, 1}


@pytest.mark.mpi
@pytest.mark.long
def test_two_resumes_at_once(tiny, tmp_path):
    out = tmp_path / "out"
    assert feedrate(*sweep(tiny, out)).status == 0
    longer = [*sweep(tiny, out, "--resume", out)]
    longer[longer.index("1,2")] = "1,2,3"
    ends = at_once(longer, longer)
    assert all(end.status == 0 or "use" in end.err or "gone on" in end.err for end in ends), [
        e.err for e in ends
    ]
    assert any(end.status == 0 for end in ends)
    result = read_result(out)
    assert [point.ranks for point in result.points] == [1, 2, 3]
    assert set(read_steps(out)["point"]) == {0, 1, 2}


@pytest.mark.mpi
@pytest.mark.long
def test_resume_compares_the_length_and_the_dataset(tiny, tmp_path):
    out = tmp_path / "out"
    assert feedrate(*sweep(tiny, out)).status == 0
    words = [*sweep(tiny, out, "--resume", out)]
    words[words.index(20)] = 10  # more would do: a run that was stopped in time has fewer
    assert "steps" in feedrate(*words).one_line()
    other = tmp_path / "other"
    assert feedrate("generate", other, "--recipe", "tiny", "--files", 96, "--seed", 5).status == 0
    assert "another dataset" in feedrate(*sweep(other, out, "--resume", out)).one_line()


@pytest.mark.parametrize("place", ["s3://bucket/x", pytest.param("folder", marks=pytest.mark.long)])
def test_two_generates_of_different_seeds(place, tmp_path):
    """On S3 both once said 0, and then "its table is missing"."""
    with s3_server() as server:
        data, environment = (place if "s3" in place else str(tmp_path / place)), server.environment()
        ends = at_once(("generate", data, *MADE), ("generate", data, *MADE, "--seed", 1), **environment)
        one_worked(ends)
        assert feedrate("verify", data, **environment).status == 0
        seed = next(index for index, end in enumerate(ends) if end.status == 0)
        assert feedrate("generate", data, *MADE, "--seed", seed, **environment).status == 0
        assert "another dataset" in feedrate("generate", data, *MADE, "--seed", 1 - seed, **environment).err


def test_a_lock_that_a_killed_generate_left_is_taken_over(tmp_path):
    data, quiet = tmp_path / "data", {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    with started("generate", data, *MADE, "--files", 4000, **quiet) as process:
        assert until(lambda: list(data.glob("*.npz"))) and process.poll() is None
        below = psutil.Process(process.pid).children(recursive=True)
        process.kill()
    assert not outlive(below)  # one of them has the lock until then
    assert (data / ".feedrate/lock").read_bytes()
    done = feedrate("generate", data, *MADE, "--files", 24, "--force")
    assert done.status == 0, done.err
    assert not list(data.rglob("*.part")) and feedrate("verify", data).status == 0
