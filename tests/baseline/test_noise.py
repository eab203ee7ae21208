"""A training sweep beside fio: the noise runs, is said, and is gone afterwards."""

import json
import shutil
import subprocess
import time

import pytest
from command import ANSWERED, feedrate, started, until

from emulator.errors import SpecError
from emulator.plugins.baseline.noise import parse_noise
from emulator.record.out import read_result
from emulator.sweep.noise import noise_folder

with_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")


def test_specs():
    writers = parse_noise("writers")
    assert writers.names == ("writer-4k", "writer-8k", "writer-16k")
    assert parse_noise("checkpoint").suite.sections["checkpoint"].splitlines()[1] == "rw=write"
    section = parse_noise("read:2x1MiB,depth=4,rate=50MB/s,size=8MiB").suite.sections["noise"]
    assert section.splitlines()[1:] == ["rw=randread", "bs=1048576", "iodepth=4", "rate=25000000"]
    odd = ("0x4KiB", "3x", "3x4KiB,depth=x", "3x4KiB,speed=3", "1x3B", "1x1GiB,size=4KiB")
    for wrong in ("", "loud", "3x4KiB", *(f"write:{spec}" for spec in odd)):
        with pytest.raises(SpecError) as error:
            parse_noise(wrong)
        assert "\n" not in str(error.value)


@with_fio
@pytest.mark.mpi
def test_a_sweep_beside_noise_says_so_and_leaves_nothing(tiny, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(tiny, data)
    done = feedrate(
        "sweep", data, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", "1,2", "--steps", "8",
        "--noise", "read:1x64KiB,rate=5MB/s,size=4MiB", "--out", out,
    )  # fmt: skip
    assert done.status in ANSWERED, done.err
    result = read_result(out)
    assert (result.status, len(result.points)) == ("complete", 2)
    assert result.storage["noise"].startswith("read:1x64KiB")
    (told,) = (out / "noise").glob("*.json")
    rate = json.loads(told.read_text())["jobs"][0]["read"]["bw_bytes"]
    assert 0 < rate < 1.2 * 5e6
    assert not noise_folder(data, "any").parent.exists()
    assert "Beside noise" in feedrate("report", out).out


@with_fio
@pytest.mark.mpi
def test_the_noise_of_a_killed_sweep_ends_and_leaves_no_file(tiny, tmp_path):
    data = tmp_path / "data"
    shutil.copytree(tiny, data)
    words = (
        "sweep", data, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", "1", "--steps", "9999",
        "--noise", "write:2x4KiB,size=1MiB", "--out", tmp_path / "out",
    )  # fmt: skip
    beside = noise_folder(data, "any").parent
    with started(*words, stderr=subprocess.DEVNULL) as process:
        for line in process.stdout:
            if line.startswith("point 1"):
                break
        assert until(lambda: len(list(beside.glob("*/job*"))) == 2)
        time.sleep(1)  # fio does not remove a file that it is still laying out
        process.terminate()
        process.stdout.read()
    assert until(lambda: not list(beside.glob("*/job*")))  # the journal stays: the next one takes it over
    assert feedrate("verify", data).status == 0


def test_noise_that_cannot_be_is_one_line(tiny, tmp_path):
    words = ("sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1", "--out", tmp_path / "out")
    assert "write it like" in feedrate(*words, "--noise", "write:loud").one_line()
    assert "checkpoint, read, write, writers" in feedrate(*words, "--noise", "loud").one_line()
    done = feedrate(*words, "--noise", "writers", PATH="/nowhere")
    assert done.status == 7 and "apt install fio" in done.one_line()
