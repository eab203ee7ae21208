"""What bounds a point, from real ranks: CPU that others took, the loader, a shaped storage, nothing.

`benchmarks/causes.py` has many more of these, on a machine that does nothing else.
"""

import subprocess
import sys

import pytest
from command import feedrate

from emulator.record.machine import cores
from emulator.record.out import read_result

pytestmark = [pytest.mark.mpi, pytest.mark.alone]


def bound_of(out, *words):
    done = feedrate("run", *words, "--workload", "unet3d-tiny", "--loader", "direct", "--out", out)
    assert done.status == 0, done.err
    return read_result(out).points[0]


def unless_crowded(point, kind):
    """What may be said: `kind`, and client-cpu when others keep this machine's cores busy."""
    (host,) = point.hosts
    crowded = host.busy_share >= 0.9 or (host.runqueue or 0) > host.cores
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


def test_shaped_storage_and_enough_of_it(tiny, tmp_path):
    starved = bound_of(tmp_path / "a", tiny, "-n", 2, "--steps", 16, "--storage", "shaped:40MB/s")
    assert starved.bound.kind == "bandwidth", starved.bound
    fed = bound_of(tmp_path / "b", tiny, "-n", 1, "--steps", 16)
    assert fed.bound.kind in unless_crowded(fed, "compute"), fed.bound
