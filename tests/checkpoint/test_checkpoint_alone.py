"""A checkpoint run of one rank in this process: what it refuses, what it finds, what it leaves."""

import itertools
import shutil
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from emulator.config.checkpoint import load_checkpoint_model
from emulator.errors import FeedrateError
from emulator.launch.comm import Comm
from emulator.plugins.checkpoint import files as place
from emulator.plugins.checkpoint.cycle import measure, sweep_up
from emulator.plugins.checkpoint.job import CheckpointJob, check
from emulator.record.result import RunResult
from emulator.report.document import document_of
from emulator.report.terminal import render
from emulator.sweep.summary import recovered


@pytest.fixture
def job(tmp_path) -> CheckpointJob:
    (tmp_path / "data").mkdir()
    scale = Fraction(1, 50_000)
    return CheckpointJob(folder=tmp_path / "data", model=model(1, 1), scale=scale, out=tmp_path / "out")


def model(writes: int, reads: int, name: str = "llama3-8b"):
    return load_checkpoint_model(name, [f"io.writes={writes}", f"io.reads={reads}", "io.pause=0s"])


def run(job: CheckpointJob, out: Path | None = None):
    return measure(replace(job, out=out or job.out), Comm(), force=False)


def numbers(result: RunResult) -> list[int]:
    return [checkpoint.number for checkpoint in result.checkpoints]


def refused(job: CheckpointJob, capfd, out: Path | None = None) -> str:
    with pytest.raises(SystemExit):
        run(job, out)
    (line,) = capfd.readouterr().err.splitlines()
    return line


def test_it_leaves_nothing_unless_it_is_told_to(job):
    assert run(job).status == "complete"
    assert list(job.folder.iterdir()) == []


@pytest.mark.parametrize("direct", [True, False])
def test_what_was_kept_is_restored_by_a_later_run(job, tmp_path, direct):
    kept = replace(
        job, model=replace(model(2, 0), io=replace(job.model.io, direct=direct, writes=2, reads=0))
    )
    first = run(replace(kept, keep=True))
    again = run(replace(job, model=model(0, 3), keep=True), tmp_path / "again")
    more = run(replace(job, keep=True), tmp_path / "more")
    assert numbers(first) == [0, 1]
    assert {checkpoint.direction for checkpoint in again.checkpoints} == {"read"}
    assert numbers(again) == [0, 1, 0]
    assert again.storage["cache"] == "cold"
    assert numbers(more) == [2, 2]
    assert place.complete(job.root) == [0, 1, 2]


def test_what_memory_held_before_it_was_read_back_is_flagged(job, tmp_path):
    """Pages that another process has mapped cannot be evicted."""
    run(replace(job, model=model(1, 0), keep=True))
    mapped = [np.memmap(path, np.uint8, "r") for path in (job.root / "checkpoint-000000").iterdir()]
    assert sum(int(pages.max()) for pages in mapped)
    again = run(replace(job, model=model(0, 1), keep=True), tmp_path / "again")
    assert again.checkpoints[0].resident_share > 0.5
    assert [flag.name for flag in again.flags] == ["page-cache"]


def test_a_damaged_checkpoint_ends_the_run_and_says_which_file(job, tmp_path, capfd):
    run(replace(job, model=model(2, 0), keep=True))
    damaged = next(path for path in (job.root / "checkpoint-000001").iterdir() if "optimiser" in path.name)
    with damaged.open("r+b") as file:
        file.seek(5000)
        file.write(b"wrong")
    out = tmp_path / "again"
    line = refused(replace(job, model=model(0, 2), keep=True), capfd, out)
    assert damaged.name in line and "checksum" in line
    result = recovered(out)
    assert (result.status, numbers(result)) == ("incomplete", [0])
    assert "is damaged" in result.reason and "Incomplete" in render(document_of(result).blocks)


def test_another_runs_checkpoint_is_not_read_as_ones_own(job, tmp_path, capfd):
    run(replace(job, keep=True))
    for changes in ({"scale": Fraction(1, 40_000)}, {"model": model(0, 1, "llama3-70b"), "subset": True}):
        other = replace(job, **({"model": model(0, 1)} | changes))
        line = refused(other, capfd, tmp_path / f"out-{len(changes)}")
        assert "is of llama3-8b by 1 ranks" in line and "options" in line


def test_there_is_nothing_to_read(job, capfd):
    assert "write some with --writes and --keep" in refused(replace(job, model=model(0, 1)), capfd)
    assert list(job.folder.iterdir()) == []


def test_checkpoints_that_a_dead_run_was_to_remove_go_and_kept_ones_stay(job, tmp_path, capsys):
    """A host that dies in the second write leaves the first one complete, and the second one unfinished."""
    run(replace(job, keep=True))
    for number in (1, 2):
        part = place.begin(job.root, number, "dead")
        marker = place.read_marker(job.root, 0)
        if number == 1:
            for file in itertools.chain(*marker.files):
                shutil.copy(job.root / "checkpoint-000000" / file.name, part)
            place.commit(part, 1, replace(marker, keep=False))
    assert run(job, tmp_path / "again").status == "complete"
    said = capsys.readouterr().out
    assert "removed checkpoint-000001, which a run that died had left" in said
    assert "removed checkpoint-000002.dead.part, which a run that died had left" in said
    assert place.complete(job.root) == [0] and place.unfinished(job.root) == []


def test_more_than_fits_is_refused_before_anything_is_written(job, capsys):
    job = replace(job, scale=Fraction(1), model=model(10**6, 1))
    assert "choose fewer --writes, or a --scale below 1" in refused(job, capsys)
    assert list(job.folder.iterdir()) == [] and not job.out.exists()


def test_leftovers_are_swept_up_and_said(job, capsys):
    run(replace(job, keep=True))
    place.begin(job.root, 9, "x")
    sweep_up(job)
    assert "removed checkpoint-000009.x.part" in capsys.readouterr().err
    with place.locked(job.root):
        sweep_up(job)
    assert "another run" in capsys.readouterr().err
    assert place.complete(job.root) == [0]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"model": model(1, 1, "llama3-70b")}, "a copy of llama3-70b takes 8 ranks"),
        ({"folder": Path("/nowhere/at/all")}, "there is no folder /nowhere/at/all"),
        ({"folder": Path("rados://pool/x")}, "checkpoints are files, not objects of rados://"),
    ],
)
def test_what_cannot_be_is_seen_before_anything_is_written(job, changes, said):
    with pytest.raises(FeedrateError, match=said) as error:
        check(replace(job, **changes), 1, force=False)
    assert "\n" not in str(error.value)
    assert list(job.folder.iterdir()) == []
