"""On devices of known latency, bandwidth and IOPS the limit is named, and the advice on latency holds."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
from command import feedrate

from emulator.analysis.answer import answer_of
from emulator.analysis.gate import threshold_of
from emulator.record.out import read_result
from emulator.record.result import RunResult

pytestmark = [pytest.mark.latency, pytest.mark.timeout(900)]
DEVICE = Path(__file__).resolve().parents[1] / "lab/device.sh"

MEDIA = {"bandwidth": (100_000_000, 0.001, 0, 0), "iops": (0, 0.0005, 0, 400), "latency": (0, 0.012, 0, 0)}
"""Bytes/s, seconds, jitter and IOPS of a device; 0 is no limit."""


MORE = {
    "bandwidth": r"To feed \d: ([\d.]+) MB/s more",
    "iops": r"To feed \d: ([\d,]+) requests/s more",
    "latency": r"(\d+) workers .* (?:give (\d+)%|feed about 1)",
}
"""The advice, and its number."""


def device(verb: str, place: Path, *limits: object) -> None:
    subprocess.run(
        [str(word) for word in (DEVICE, verb, place, *limits)], check=True, stdout=subprocess.DEVNULL
    )


@pytest.fixture(scope="module", params=MEDIA)
def medium(request, tmp_path_factory):
    """The limit's kind, and a folder with a dataset on a device that has it."""
    place = tmp_path_factory.mktemp(request.param)
    rate, *others = MEDIA[request.param]
    device("up", place, "1100M", rate, "shared", *others)
    assert feedrate("generate", place / "mnt/ds", "--recipe", "tiny", "--files", 600).status == 0
    yield request.param, place
    device("down", place)


def measured(dataset: Path, out: Path, loader: str, workers: int, ranks: int = 2) -> RunResult:
    words = ("-w", "unet3d-tiny", "--loader", loader, "--set", f"loader.workers={workers}", "--steps", 60)
    done = feedrate("run", dataset, *words, "-n", ranks, "--out", out, timeout=300)
    assert done.status == 0, done.err
    return read_result(out)


@pytest.mark.parametrize(("loader", "workers"), [("direct", 1), ("torch", 2)])
@pytest.mark.parametrize("turn", range(3))
def test_the_limit_is_named_and_the_advice_helps_as_much_as_it_says(medium, loader, workers, turn, tmp_path):
    kind, place = medium
    ranks = 1 if kind == "latency" or (kind, loader) == ("iops", "torch") else 4
    result = measured(place / "mnt/ds", tmp_path / "out", loader, workers, ranks)
    (point,), advice = result.points, answer_of(result).advice
    assert point.bound is not None
    print(kind, loader, f"X/X_ideal {point.x_ideal:.2f}", point.bound.kind, "|", advice)
    assert point.bound.kind == kind
    more = re.match(MORE[kind], advice)
    assert more, advice
    said, number = threshold_of(result), float(more[1].replace(",", ""))
    rate, latency, jitter, iops = MEDIA[kind]
    if kind == "latency":
        workers, said = int(number), float(more[2] or 100) / 100
    elif kind == "bandwidth":
        device("again", place, round(rate + 1e6 * number), latency, jitter, iops)
    else:
        device("again", place, rate, latency, jitter, iops + int(number))
    (then,) = measured(place / "mnt/ds", tmp_path / "then", loader, workers, ranks).points
    device("again", place, *MEDIA[kind])
    print(f"  then {then.x_ideal:.2f}, said {said:.2f}")
    assert then.x_ideal == pytest.approx(said, rel=0.2)


@pytest.mark.parametrize("loader", ["direct", "torch"])
def test_without_a_neighbour_the_dataset_is_read_faster_by_the_share_that_its_flag_says(loader, tmp_path):
    place, busy = tmp_path / "device", "--rw=randread --bs=256k --direct=1 --thread --numjobs=4 --size=300M"
    device("up", place, "1500M", 160_000_000, "shared", 0, 0, 0)
    try:
        data = place / "mnt/ds"
        assert feedrate("generate", data, "--recipe", "tiny", "--files", 600).status == 0
        words = ["fio", "--name=other", f"--filename={place / 'mnt/other'}", *busy.split()]
        subprocess.run([*words, "--create_only=1"], check=True, stdout=subprocess.DEVNULL)
        with subprocess.Popen([*words, "--time_based", "--runtime=300"], stdout=subprocess.DEVNULL) as fio:
            (beside,) = measured(data, tmp_path / "beside", loader, 2, 3).points
            fio.terminate()
        (alone,) = measured(data, tmp_path / "alone", loader, 2, 3).points
    finally:
        device("down", place)
    (share,) = (flag.value for flag in beside.flags if flag.name == "neighbour")
    said = beside.bytes_per_second / (1 - share)
    print(f"{loader}, neighbour {share:.3f}: {alone.bytes_per_second:.4g} bytes/s alone, said {said:.4g}")
    assert alone.bytes_per_second == pytest.approx(said, rel=0.2)
    assert "neighbour" not in {flag.name for flag in alone.flags}
