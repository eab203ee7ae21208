"""`feedrate baseline` with the real fio: the figures are those of fio's own JSON."""

import json
import shutil
import subprocess

import pytest
from command import feedrate

import emulator
from emulator.plugins.baseline.report import maxima, neighbours, summed
from emulator.record.out import read_result

with_fio = pytest.mark.skipif(shutil.which("fio") is None, reason="fio is not installed")
QUICK = ("--quick", "--size", "4MiB", "--runtime", "100ms")


def baseline(folder, out, *words, **options):
    folder.mkdir(exist_ok=True)
    return feedrate("baseline", folder, *QUICK, "--out", out, *words, **options)


@with_fio
def test_every_figure_is_fios(tmp_path):
    out = tmp_path / "out"
    done = baseline(tmp_path / "data", out, "--suite", "four-corners", "--depths", "4", "--jobs", "2")
    assert done.status == 0, done.err
    result = read_result(out)
    assert (result.kind, result.status, len(result.baseline)) == ("baseline", "complete", 4)
    for corner in result.baseline:
        (file,) = corner.files
        (group,) = json.loads((out / file).read_text())["jobs"]
        for printed, side in ((group["read"], corner.read), (group["write"], corner.write)):
            if side is None:
                assert printed["total_ios"] == 0
                continue
            assert side.iops == printed["iops"]
            assert side.bytes_per_second == printed["bw_bytes"]
            assert side.latency_mean == pytest.approx(printed["lat_ns"]["mean"] / 1e9, rel=1e-9)
            percentiles = printed["lat_ns"]["percentile"]
            assert side.latency_p50 == percentiles["50.000000"] / 1e9
            assert side.latency_p99 == percentiles["99.000000"] / 1e9
            assert side.latency_p9999 == percentiles["99.990000"] / 1e9
    assert not list((tmp_path / "data").iterdir()), "its files are removed"
    assert "Maximum of each workload" in done.out
    shown = feedrate("report", out)
    assert shown.status == 0 and "1 MiB sequential read" in shown.out


@with_fio
def test_the_kept_job_file_runs_by_hand(tmp_path):
    """The same job by hand: fio takes the kept file as it is, on the files that --keep left."""
    data, out = tmp_path / "da:ta", tmp_path / "out"
    done = baseline(data, out, "--suite", "mixed", "--depths", "2", "--jobs", "2", "--keep")
    assert done.status == 0, done.err
    jobs = sorted(out.glob("fio/*/*.fio"))
    assert len(jobs) == 5
    by_hand = subprocess.run(
        ["fio", "--output-format=json", jobs[3]], capture_output=True, text=True, check=True, cwd=tmp_path
    )
    (group,) = json.loads(by_hand.stdout[by_hand.stdout.index("{") :])["jobs"]
    assert group["read"]["total_ios"] and group["write"]["total_ios"]
    assert sorted(path.name for path in data.glob("*/*/job*")) == ["job0.dat", "job1.dat"]


@with_fio
def test_noisy_neighbours_are_measured_alone_and_together(tmp_path):
    out, others = tmp_path / "out", [tmp_path / f"namespace{number}" for number in range(5)]
    for folder in others:
        folder.mkdir()
    done = baseline(tmp_path / "data", out, *others, "--suite", "noisy-neighbour")
    assert done.status == 0, done.err
    result = read_result(out)
    assert len(result.baseline) == 12
    assert {(corner.read is None, corner.depth) for corner in result.baseline} == {(True, 8), (False, 1)}
    assert not maxima(result.baseline)
    readers = neighbours(result.baseline, read=True)
    assert [reader.access for reader in readers] == [f"{size} KiB random read" for size in (4, 8, 16)]
    together = [corner.read for corner in result.baseline if corner.beside == "writers"]
    assert summed(readers)[1] == sum(side.bytes_per_second for side in together)
    assert "Readers keep" in done.out
    assert not [path for folder in (*others, tmp_path / "data") for path in folder.iterdir()]


@with_fio
@pytest.mark.mpi
@pytest.mark.long
def test_two_clients_have_folders_of_their_own_and_add_up(tmp_path):
    out = tmp_path / "out"
    words = ("--suite", "sequential", "--depths", "2", "--jobs", "1", "--keep")
    done = baseline(tmp_path / "data", out, *words, mpirun=2)
    assert done.status == 0, done.err
    assert len(list((tmp_path / "data").glob("feedrate-baseline/*/job0.dat"))) == 2
    corners = read_result(out).baseline
    assert [corner.clients for corner in corners] == [2] * 4
    for corner in corners:
        assert len(corner.files) == corner.clients
        groups = [json.loads((out / file).read_text())["jobs"][0] for file in corner.files]
        side, word = (corner.read, "read") if corner.read else (corner.write, "write")
        assert side.iops == pytest.approx(sum(group[word]["iops"] for group in groups))


@with_fio
def test_python_measures_as_the_command_does(tmp_path):
    measured = emulator.baseline(
        tmp_path, out=tmp_path / "out", suite="sequential", quick=True, depths="2", jobs=1, size="4MiB",
        runtime="100ms",
    )  # fmt: skip
    assert (measured.run.kind, len(measured.run.baseline)) == ("baseline", 4)
    assert "fio reads up to" in measured.answer.sentence


def test_without_fio_there_is_one_clear_line(tmp_path):
    (tmp_path / "data").mkdir()
    done = feedrate("baseline", tmp_path / "data", "--out", tmp_path / "out", PATH="/nowhere")
    assert done.status == 7
    assert "apt install fio" in done.one_line()
    assert not (tmp_path / "out").exists()


@with_fio
@pytest.mark.parametrize(
    ("words", "status", "said"),
    [
        (("data", "--suite", "nope"), 2, "four-corners"),
        (("nowhere",), 4, "no folder"),
        (("data", "--size", "900PB"), 2, "smaller --size"),
        (("data", "data", "--suite", "probe"), 2, "2 folders for 1 files"),
        (("/dev/loop0",), 2, "is a device, which fio would overwrite"),
    ],
)
def test_what_cannot_work_is_said_before_anything_is_written(tmp_path, words, status, said):
    (tmp_path / "data").mkdir()
    done = feedrate("baseline", *words, "--out", "out", cwd=tmp_path)
    assert done.status == status and said in done.one_line(), done.err
    assert not (tmp_path / "out").exists() and not list((tmp_path / "data").iterdir())


@with_fio
def test_what_fio_refuses_is_one_line_and_keeps_an_incomplete_result(tmp_path):
    done = baseline(tmp_path / "data", tmp_path / "out", "--size", "4KiB")
    assert done.status == 4
    assert "fio failed" in done.one_line()
    assert read_result(tmp_path / "out").status == "incomplete"
