"""`feedrate sweep` with real ranks on a shaped storage: a knee at a known place, and what bounds a point.

`benchmarks/causes.py` has many more causes, on a machine that does nothing else.
"""

import subprocess
import sys
import time

import pytest
from command import ANSWERED, feedrate, ranks_of, started

from emulator.analysis.answer import answer_of
from emulator.analysis.bound import SPARE
from emulator.record.machine import cores
from emulator.record.out import read_result
from emulator.record.result import CLIENT
from emulator.record.steps import read_steps

pytestmark = [pytest.mark.mpi, pytest.mark.alone]

LIMIT = 200e6


@pytest.fixture(scope="module")
def swept(tiny, tmp_path_factory):
    """One to six ranks of 80 MB/s each on 200 MB/s; two cores have none left for worker processes."""
    out = tmp_path_factory.mktemp("sweep") / "out"
    words = ("sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1,2,6", "--loader", "direct")
    # 24 steps an epoch: their borders would be 4 % of the time
    settings = ("--storage", "shaped:200MB/s", "--set", "loader.refill=never", "--steps", 40)
    done = feedrate(*words, *settings, "--out", out)
    assert done.status in ANSWERED, done.err
    return read_result(out), read_steps(out), done.out


def test_ranks_get_what_they_ask_for_up_to_the_limit_and_the_knee_is_there(swept):
    """Never more; less where the client was the limit, on a busy machine."""
    result, _, shown = swept
    mean = result.dataset["bytes"] / result.dataset["files"]
    for point in result.points:
        asked = min(LIMIT, point.ranks * 80 * mean)  # 4 samples in 50 ms are 80 a second
        assert point.bytes_per_second < 1.05 * asked
        assert point.bytes_per_second > 0.95 * asked or point.bound.kind in CLIENT
    assert answer_of(result).sentence in " ".join(shown.split())
    assert result.knee.kind == "at-least" or 2 < result.knee.n_au < 4


def test_every_point_has_its_steps_and_emulated_storage_is_marked(swept):
    result, rows, shown = swept
    assert result.storage["shaped_rate"] == LIMIT and "shaped" in shown
    for number, point in enumerate(result.points):
        mine = rows[rows["point"] == number]
        assert set(mine["rank"]) == set(range(point.ranks))
        assert len(mine) == 40 * point.ranks


def test_a_point_on_each_side_says_what_bounds_it(swept):
    result, _, _ = swept
    fed, _, starved = result.points
    assert starved.bound.kind in unless_crowded(starved, "bandwidth"), starved.bound
    assert fed.bound.kind in unless_crowded(fed, "compute"), fed.bound


def test_idle_ranks_sleep(tiny, tmp_path):
    """Three of four ranks have nothing to do for six seconds: under 1 % of a core each."""
    words = ("sweep", tiny, "--workload", "unet3d-tiny", "--counts", "1", "-n", "4", "--loader", "direct")
    words += ("--steps", "120", "--out", tmp_path / "out")
    with started(*words, stderr=None) as process:
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


def bound_of(out, *words):
    done = feedrate("run", *words, "--workload", "unet3d-tiny", "--loader", "direct", "--out", out)
    assert done.status == 0, done.err
    return read_result(out).points[0]


def unless_crowded(point, kind):
    """What may be said: `kind`, and client-cpu when others keep this machine's cores busy."""
    (host,) = point.hosts
    crowded = host.busy_share >= SPARE
    return (kind, "client-cpu") if crowded else (kind,)


@pytest.fixture
def hogs():
    """Two busy processes per core, beside the ranks."""
    code = "while True: pass"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(2 * cores())]
    yield
    for hog in started:
        hog.kill()
        hog.wait()


@pytest.fixture
def remembered(tiny):
    """A dataset whose files are in memory: runs of other tests push them out."""
    for file in tiny.rglob("*.npz"):
        file.read_bytes()
    return tiny


def test_cpu_that_others_take_is_named(remembered, tmp_path, hogs):
    """In half a second, too: waits at the beginning of a run are looked up often."""
    step = ("--set", "accelerator.step_seconds=0.002")
    point = bound_of(tmp_path / "out", remembered, "-n", 4, "--steps", 100, "--cache", "warm", *step)
    assert point.bound.kind == "client-cpu", point.bound
    assert point.starved.cores > point.starved.storage, point.starved


def test_a_loader_at_its_limit_is_named(remembered, tmp_path):
    """One reader thread, files in memory, hardly any compute: nothing but the emulator is left."""
    quick = ("--set", "accelerator.step_seconds=0.0005", "--set", "loader.workers=1")
    point = bound_of(tmp_path / "out", remembered, "-n", 1, "--steps", 400, "--cache", "warm", *quick)
    assert point.bound.kind in unless_crowded(point, "loader"), point.bound
    assert point.x_ideal < 0.95
