"""On devices of known latency, bandwidth and IOPS the limit is named, and the advice on latency holds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from command import feedrate

from emulator.record.out import read_result
from emulator.record.result import Point

pytestmark = [pytest.mark.latency, pytest.mark.timeout(900)]
DEVICE = Path(__file__).resolve().parents[1] / "lab/device.sh"

MEDIA = {"bandwidth": (100_000_000, 0.001, 0, 0), "iops": (0, 0.0005, 0, 400), "latency": (0, 0.012, 0, 0)}
"""Bytes/s, seconds, jitter and IOPS of a device; 0 is no limit."""


@pytest.fixture(scope="module", params=MEDIA)
def medium(request, tmp_path_factory):
    """The limit's kind, and a dataset on a device that has it."""
    place = tmp_path_factory.mktemp(request.param)
    words = [str(word) for word in (DEVICE, "up", place, "1100M", MEDIA[request.param][0], "shared")]
    words += [str(word) for word in MEDIA[request.param][1:]]
    subprocess.run(words, check=True, stdout=subprocess.DEVNULL)
    assert feedrate("generate", place / "mnt/ds", "--recipe", "tiny", "--files", 600).status == 0
    yield request.param, place / "mnt/ds"
    subprocess.run([str(DEVICE), "down", str(place)], check=True)


def measured(dataset: Path, out: Path, loader: str, workers: int, ranks: int = 2) -> Point:
    words = ("-w", "unet3d-tiny", "--loader", loader, "--set", f"loader.workers={workers}", "--steps", 60)
    done = feedrate("run", dataset, *words, "-n", ranks, "--out", out, timeout=300)
    assert done.status == 0, done.err
    (point,) = read_result(out).points
    return point


@pytest.mark.parametrize(("loader", "workers"), [("direct", 1), ("torch", 2)])
@pytest.mark.parametrize("turn", range(3))
def test_the_limit_is_named(medium, loader, workers, turn, tmp_path):
    kind, dataset = medium
    ranks = 1 if kind == "latency" else 4
    point = measured(dataset, tmp_path / "out", loader, workers, ranks)
    assert point.bound is not None
    print(kind, loader, f"X/X_ideal {point.x_ideal:.2f}", point.bound.kind, "|", point.bound.help)
    assert point.bound.kind == kind
    if kind == "latency":
        more = re.match(r"(\d+) workers .* (?:give (\d+)%|feed about 1)", point.bound.help)
        assert more, point.bound.help
        then = measured(dataset, tmp_path / "then", loader, int(more[1]), ranks)
        said = float(more[2] or 100) / 100
        print(f"  then {then.x_ideal:.2f}, said {said:.2f}")
        assert then.x_ideal == pytest.approx(said, rel=0.2)
