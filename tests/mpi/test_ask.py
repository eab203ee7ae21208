"""`feedrate ask`: from an empty folder to an answer, nothing left behind; an existing dataset stays."""

from __future__ import annotations

import json
import re
import subprocess
import time
from pathlib import Path

import pytest
from command import ANSWERED, feedrate, started
from s3_server import s3_server

from emulator.record.out import read_result

pytestmark = pytest.mark.mpi
WORDS = ("-w", "unet3d-tiny", "--storage", "shaped:400MB/s", "--up-to", 8)


def test_a_missing_mount_is_one_line_and_nothing_is_made_in_its_place(tmp_path: Path) -> None:
    done = feedrate("ask", tmp_path / "mnt" / "place", *WORDS, "--out", tmp_path / "out", cwd=tmp_path)
    assert done.status == 4 and f"there is no folder {tmp_path}/mnt/place" in done.one_line()
    assert not list(tmp_path.iterdir())


@pytest.mark.alone
@pytest.mark.timeout(170)
def test_an_empty_folder_gives_an_answer_and_is_left_empty(tmp_path: Path) -> None:
    place, out = tmp_path / "place", tmp_path / "out"
    place.mkdir()
    (place / "theirs").write_text("stays")
    done = feedrate("ask", place, *WORDS, "--within", "20s", "--out", out, "--require", 3, "--json")
    assert done.status in ANSWERED, done.err
    answer = json.loads(done.out.splitlines()[0])
    assert f"{place} feeds " in answer["answer"]["sentence"]
    assert answer["pytorch"] is None or answer["pytorch"]["loader"] == "torch", "there may be no time for it"
    assert " mounted at /" in answer["measured"]
    assert [path.name for path in place.iterdir()] == ["theirs"]
    knee = answer["storage"]["knee"]
    # Others may keep the cores busy: then the client is the limit, or there is time for one count only.
    if knee is not None and knee["kind"] == "knee":
        low, high = knee["interval"]
        assert 0.9 * low < 5.55 < 1.1 * high, "400 MB/s feed 5.55 of 80 MB/s at 90 %"
        assert re.match(r"To feed 8: \d+ MB/s more", answer["answer"]["advice"])
    shown = feedrate("report", out / "storage")
    assert shown.status == 0, shown.err


@pytest.mark.long
@pytest.mark.timeout(120)
def test_slow_storage_has_its_answer_in_time_and_again(tmp_path: Path) -> None:
    (tmp_path / "place").mkdir()
    out = tmp_path / "out"
    words = ("-w", "unet3d-tiny", "--storage", "shaped:2MB/s", "--within", "25s", "--out", out, "--keep")
    for _ in range(2):  # the probe of the second call may read faster
        begin = time.monotonic()
        done = feedrate("ask", tmp_path / "place", *words)
        assert done.status == 0, done.err
        assert re.search(r"place\s+feeds 0.0\d+ of an\s+accelerator", done.out)
        assert time.monotonic() - begin < 45, "42 steps of 4 MB at 2 MB/s would take 84 s"
        assert {(point.ranks, point.steps) for point in read_result(out / "storage").points} == {(1, 4)}


@pytest.mark.long
@pytest.mark.timeout(120)
def test_an_existing_dataset_is_used_and_stays(tiny: Path, tmp_path: Path) -> None:
    before = sorted(path.name for path in tiny.rglob("*"))
    # So slow that no client limits the counts above the knee: a client's limit would leave 16 open, status 9.
    words = ("-w", "unet3d-tiny", "--storage", "shaped:160MB/s", "--up-to", 8, "--within", "25s")
    done = feedrate("ask", tiny, *words, "--out", tmp_path / "out", "--require", 16)
    assert done.status in (9, 10), done.out
    assert "--require 16: " in done.out
    assert sorted(path.name for path in tiny.rglob("*")) == before


@pytest.mark.long
@pytest.mark.timeout(120)
def test_a_prefix_of_objects_is_left_empty(tmp_path: Path) -> None:
    with s3_server() as server:
        words = ("-w", "unet3d-tiny", "--up-to", 2, "--within", "25s", "--out", tmp_path / "out")
        done = feedrate("ask", "s3://bucket/here", *words, **server.environment())
        assert done.status == 0, done.err
        assert "data: removed from s3://bucket/here" in done.out and not server.objects


@pytest.mark.long
@pytest.mark.timeout(240)
def test_an_interrupted_ask_goes_on(tmp_path: Path) -> None:
    place, out = tmp_path / "place", tmp_path / "out"
    place.mkdir()
    words = ["ask", place, *WORDS, "--within", "50s", "--out", out]
    begun = started(*words, stderr=subprocess.STDOUT)
    assert begun.stdout is not None
    for line in begun.stdout:
        if "ranks: " in line:  # the first point is kept
            break
    begun.terminate()
    begun.communicate(timeout=60)
    kept = len(read_result(out / "storage").points)
    assert kept and list(place.iterdir()), "data and points stay"
    done = feedrate(*words)
    assert done.status == 0, done.err
    assert len(read_result(out / "storage").points) > kept
    assert f"{place} feeds " in done.out
    assert not list(place.iterdir())


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    for words, says in (
        ((tmp_path, "-w", "unet3d", "-a", "a99"), "unet3d has no accelerator a99"),
        ((tmp_path, "--within", "3s"), "--within 3 s is too short for steps of 636 ms: give it 20 s or more"),
        ((tmp_path, "--set", "accelerator.step_seconds=100"), "give it 33 min 20 s or more"),
        ((tmp_path, "--set", "accelerator.step_seconds=0"), "the workload does not compute"),
        ((tmp_path, "--storage", "shaped:none"), "'none' is not a rate"),
    ):
        done = feedrate("ask", *words, "--out", tmp_path / "out")
        assert done.status == 2 and says in done.err, done.err
        assert len(done.err.splitlines()) == 1
    (tmp_path / "file").touch()
    done = feedrate("ask", tmp_path, *WORDS, "--out", tmp_path / "file/out")
    assert done.status == 4 and done.one_line().endswith("Not a directory"), done.err
    assert [path.name for path in tmp_path.iterdir()] == ["file"], "nothing was generated before"
