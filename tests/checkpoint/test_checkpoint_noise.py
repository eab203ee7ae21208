"""A checkpointing job beside training: it runs, says what it did, ends with its starter, leaves nothing."""

import json
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from command import feedrate, until

from emulator.errors import FeedrateError, SpecError, StorageError
from emulator.plugins.checkpoint.checkpoint_noise import (
    CheckpointNoise,
    RunningCheckpoints,
    line,
    parse_checkpoint_noise,
)
from emulator.record.out import read_result
from emulator.sweep.noise import noise_folder

SMALL = CheckpointNoise(scale="1/20000", ranks=2)


def test_specs():
    assert parse_checkpoint_noise("checkpoint") == CheckpointNoise()
    found = parse_checkpoint_noise("checkpoint:llama3-70b,scale=1/5000,ranks=4,pause=500ms")
    assert (found.model, found.scale, found.ranks, found.pause) == ("llama3-70b", "1/5000", 4, 0.5)
    for wrong in (":", "s", ",ranks=0", ",ranks=x", ",size=3", ",scale=7", ":lama", ",pause=soon"):
        with pytest.raises(SpecError) as error:
            parse_checkpoint_noise(f"checkpoint{wrong}")
        assert "\n" not in str(error.value)


def test_it_writes_until_it_is_stopped_and_leaves_nothing(tmp_path):
    running = RunningCheckpoints(SMALL, tmp_path / "noise" / "host")
    assert list((tmp_path / "noise" / "host").glob("checkpoint-*"))
    assert until(lambda: list((tmp_path / "noise" / "host").glob("checkpoint-??????")))
    told = running.stop()
    said = json.loads(told)
    assert said["bytes"] == pytest.approx(14 * 8_030_261_248 / 8 * 2 / 20000, rel=1e-3)
    assert said["checkpoints"] and all(one["seconds"] > 0 for one in said["checkpoints"])
    assert "checkpoints of 1.41 MB" in line(told).replace("checkpoint of", "checkpoints of")
    assert list(tmp_path.iterdir()) == []


def test_it_ends_when_whoever_started_it_is_killed(tmp_path):
    code = (
        "import sys, time; from pathlib import Path; from emulator.plugins.checkpoint.checkpoint_noise import *"  # noqa: E501
        "\n"
        "place = Path(sys.argv[1]) / 'noise' / 'host'\n"
        "RunningCheckpoints(CheckpointNoise(scale='1/20000', ranks=2), place)\n"
        "print('begun', flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], stdout=subprocess.PIPE) as process:
        assert process.stdout.readline() == b"begun\n"
        process.send_signal(signal.SIGKILL)
    assert until(lambda: not (tmp_path / "noise").exists()) and list(tmp_path.iterdir()) == []


def test_what_goes_wrong_is_one_line(tmp_path):
    (tmp_path / "noise").write_text("in the way")
    with pytest.raises(StorageError, match="noise's folder"):
        RunningCheckpoints(SMALL, tmp_path / "noise" / "host")
    (tmp_path / "noise").unlink()
    with pytest.raises(FeedrateError) as error:
        RunningCheckpoints(replace(SMALL, model="nothing"), tmp_path / "noise" / "host")
    assert "there is no model 'nothing'" in str(error.value) and "Traceback" not in str(error.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.mpi
@pytest.mark.long
def test_a_sweep_beside_checkpoints_says_so(tiny, tmp_path):
    data, out = tmp_path / "data", tmp_path / "out"
    shutil.copytree(tiny, data)
    noise = "checkpoint:llama3-8b,scale=1/20000,ranks=2"
    done = feedrate(
        "sweep", data, "--workload", "unet3d-tiny", "--loader", "direct", "--counts", "1", "--steps", "8",
        "--noise", noise, "--out", out,
    )  # fmt: skip
    assert done.status == 0, done.err
    assert "checkpoints of 1.41 MB" in done.out
    result = read_result(out)
    assert (result.status, result.storage["noise"]) == ("complete", noise)
    (told,) = (out / "noise").glob("*.json")
    assert json.loads(told.read_text())["checkpoints"]
    assert not noise_folder(data, "any").parent.exists()
    assert "Beside noise: checkpoint" in feedrate("report", out).out
