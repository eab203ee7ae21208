"""`feedrate report` and `feedrate compare` as a person runs them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from command import Done, feedrate
from synthetic_results import flagged_sweep, multi_host_sweep, point, result, steps_of

from emulator.record.out import write_result
from emulator.record.result import SCHEMA
from emulator.record.steps import write_steps
from emulator.report.document import document_of
from emulator.report.terminal import as_markdown
from emulator.sweep.summary import recovered


def refused(done: Done, code: int) -> str:
    assert done.status == code, done.err
    return done.one_line()


@pytest.fixture
def out(tmp_path: Path) -> Path:
    made = flagged_sweep()
    (tmp_path / "out").mkdir()
    write_result(tmp_path / "out", made)
    write_steps(tmp_path / "out", steps_of(made))
    return tmp_path / "out"


def test_report_shows_the_table_and_writes_the_files(out: Path, tmp_path: Path) -> None:
    files = [tmp_path / f"a.{kind}" for kind in ("html", "png", "svg")]
    done = feedrate("report", out, "--html", files[0], "--png", files[1], "--svg", files[2])
    assert done.status == 0, done.err
    assert "!! Emulated storage" in done.out
    assert "This storage feeds 14 A100s" in done.out
    assert "\x1b" not in done.out
    assert done.out.splitlines()[-3:] == [f"page: {files[0]}", f"picture: {files[1]}", f"picture: {files[2]}"]
    assert [file.read_bytes()[:4] for file in files] == [b"<!do", b"\x89PNG", b"<svg"]


def test_a_point_that_was_cut_off_is_of_each_ranks_first_steps_where_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = result([point(4, 1e15)])
    write_result(tmp_path, replace(made, points=(), status="incomplete", reason="killed"))
    rows = steps_of(made, 4)
    write_steps(tmp_path, rows)
    (whole,) = recovered(tmp_path).points
    monkeypatch.setattr("emulator.sweep.summary._CUT_OFF_ROWS", 4 * 10)
    (cut,) = recovered(tmp_path).points
    assert (whole.steps, whole.flags, cut.steps) == (len(rows) // 4, (), 10)
    (flag,) = cut.flags
    assert f"over the first 10 steps of each rank, 40 of {len(rows)} in all" in flag.sentence
    assert flag.sentence in as_markdown(document_of(recovered(tmp_path)).blocks)


def test_what_is_wrong_is_one_line(out: Path, tmp_path: Path) -> None:
    assert "there is no result in" in refused(feedrate("report", tmp_path / "nowhere"), 4)
    assert "cannot write" in refused(feedrate("report", out, "--html", tmp_path / "no" / "a.html"), 4)
    text = (out / "run.json").read_text()
    (out / "steps.parquet").write_bytes(b"PAR1")
    (out / "run.json").write_text(text.replace('"status": "complete"', '"status": "incomplete"'))
    assert "not valid Parquet" in refused(
        feedrate("report", out), 2
    )  # a run that was cut off: its log is read
    (out / "run.json").write_text(text.replace(f'"schema": {SCHEMA}', '"schema": 99'))
    assert "newer feedrate" in refused(feedrate("report", out), 2)
    (out / "run.json").write_text(text[:-20])
    assert "not valid JSON" in refused(feedrate("compare", out), 2)


def test_compare_puts_results_and_published_rows_beside_each_other(out: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    write_result(other, replace(multi_host_sweep(), loader="torch"))
    page = tmp_path / "a.html"
    done = feedrate("compare", "out", "other", "--reference", "all", "--html", page, cwd=tmp_path)
    assert done.status == 0, done.err
    assert "weka-1-client-dual-socket-56-cores" in "".join(done.out.split())
    assert "loader  direct  torch" in done.out
    assert page.read_text().startswith("<!doctype html>")
