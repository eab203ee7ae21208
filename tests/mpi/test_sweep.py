"""`feedrate sweep` with real ranks on a shaped storage: a real knee at a known place."""

import os
import subprocess
import sys
import time

import pytest
from command import ROOT_AND_OVERSUBSCRIBED, feedrate, ranks_of

from emulator.record.out import read_result
from emulator.record.steps import read_steps

pytestmark = [pytest.mark.mpi, pytest.mark.alone]

LIMIT = 200e6


@pytest.fixture(scope="module")
def swept(tiny, tmp_path_factory):
    """One to six ranks of 80 MB/s each on 200 MB/s; two cores have none left for worker processes."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    words = ("sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1,2,6", "--loader", "direct")
    # 24 steps an epoch: their borders would be 4 % of the time
    settings = ("--storage", "shaped:200MB/s", "--set", "access.refill=never", "--steps", 40)
    done = feedrate(*words, *settings, "--out", out)
    assert done.status == 0, done.err
    return read_result(out), read_steps(out), done.out


def test_before_the_knee_every_rank_gets_what_it_asks_for(swept):
    result, _, _ = swept
    mean = result.dataset["bytes"] / result.dataset["files"]
    for point in result.points[:2]:
        asked = point.ranks * 80 * mean  # 4 samples in 50 ms are 80 a second
        assert point.bytes_per_second == pytest.approx(asked, rel=0.05)


def test_after_the_knee_all_ranks_together_get_the_limit(swept):
    result, _, _ = swept
    assert result.points[2].bytes_per_second == pytest.approx(LIMIT, rel=0.05)


def test_the_knee_is_between(swept):
    result, _, shown = swept
    assert result.knee is not None and result.knee.n_au is not None
    assert 2 < result.knee.n_au < 4
    assert result.knee.sentence in " ".join(shown.split())


def test_emulated_storage_is_marked(swept):
    result, _, shown = swept
    assert result.storage["shaped_rate"] == LIMIT
    assert "shaped" in shown


def test_every_point_has_its_steps(swept):
    result, rows, _ = swept
    for number, point in enumerate(result.points):
        mine = rows[rows["point"] == number]
        assert set(mine["rank"]) == set(range(point.ranks))
        assert len(mine) == 40 * point.ranks


def test_idle_ranks_sleep(tiny, tmp_path):
    """Three of four ranks have nothing to do for six seconds: under 1 % of a core each."""
    words = ("sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1", "-n", "4", "--loader", "direct")
    words += ("--steps", "120", "--out", tmp_path / "out")
    process = subprocess.Popen(
        [sys.executable, "-m", "emulator", *map(str, words)],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **ROOT_AND_OVERSUBSCRIBED},
    )
    with process:
        for line in process.stdout:
            if "point 1" in line:
                break
        time.sleep(1)
        ranks = ranks_of(process)
        before = [sum(rank.cpu_times()[:2]) for rank in ranks]
        time.sleep(4)
        spent = sorted(sum(rank.cpu_times()[:2]) - start for rank, start in zip(ranks, before, strict=True))
        process.stdout.read()
    assert len(spent) == 4
    assert max(spent[:3]) < 0.01 * 4


def test_counts_above_the_world_are_refused(tiny, tmp_path):
    done = feedrate(
        "sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1,8", "--out", tmp_path / "out", mpirun=2
    )
    assert done.status != 0
    assert "needs 8 processes, but only 2 ranks were started" in done.one_line()
    assert not (tmp_path / "out").exists()
