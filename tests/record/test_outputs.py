"""Files that the user names as output: none of feedrate's own; a link, a pipe and a mode stay as they are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from faults.conftest import data, made, warm
from faults.harness import run

from emulator.errors import SpecError
from emulator.record.out import ResultFolder, write_output
from emulator.record.result import new_result
from emulator.record.steps import STEP

__all__ = ["data", "made", "warm"]
GENERATE = ("--recipe", "tiny", "--files", "4", "--no-fsync", "--threads", "1")
pytestmark = pytest.mark.usefixtures("warm")


@pytest.fixture
def out(tmp_path: Path) -> Path:
    made = new_result(
        "run", command=("feedrate",), workload={}, dataset={}, storage={}, loader="direct", environment={}
    )
    with ResultFolder.create(tmp_path / "out", made, force=False) as folder:
        folder.complete(np.zeros(2, STEP))
    return tmp_path / "out"


@pytest.mark.parametrize("name", ["out/run.json", "out/steps.parquet", "data/manifest.json", "data/x"])
def test_no_output_replaces_a_file_of_a_result_or_a_dataset(
    data: Path, out: Path, tmp_path: Path, name: str
) -> None:
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.*") if path.is_file()}
    (tmp_path / "link").symlink_to(tmp_path / name)
    for path in (tmp_path / name, tmp_path / "link"):
        with pytest.raises(SpecError, match=name.partition("/")[0]):
            write_output(path, b"page")
    (tmp_path / "link").unlink()
    assert {path: path.read_bytes() for path in before} == before
    assert not (data / "x").exists()


@pytest.mark.parametrize("option", ["--csv", "--markdown", "--openmetrics", "--html", "--svg"])
def test_every_option_that_names_an_output_refuses_such_a_file(out: Path, option: str) -> None:
    before = (out / "run.json").read_bytes()
    done = run(out.parent / "..", "report", out, option, out / "run.json")
    assert done.status == 2 and "out" in done.one_line(), done.err
    assert (out / "run.json").read_bytes() == before


def test_events_replace_no_file_of_a_result(out: Path, tmp_path: Path) -> None:
    before = (out / "run.json").read_bytes()
    done = run(tmp_path, "verify", tmp_path, "--live", f"json:{out}/run.json")
    assert done.status == 2 and "choose another file" in done.one_line()
    assert (out / "run.json").read_bytes() == before


def test_a_link_is_followed_and_the_mode_stays(tmp_path: Path) -> None:
    target, link = tmp_path / "target.csv", tmp_path / "link.csv"
    target.touch(0o600)
    link.symlink_to(target)
    write_output(link, "a,b")
    assert link.is_symlink() and target.read_text() == "a,b" and target.stat().st_mode & 0o777 == 0o600


def test_nothing_is_made_inside_a_dataset(data: Path, out: Path, tmp_path: Path) -> None:
    inside = data / "sub/x"
    for words in (
        ("run", data, "-w", "unet3d-tiny", "--out", inside),
        ("plan", "-w", "unet3d-tiny", "--system", "weka-performance", "--out", inside),
        ("record", "--out", inside, "--", "true"),
        ("generate", inside, *GENERATE),
    ):
        done = run(tmp_path, *words)
        assert done.status == 2 and "lies in" in done.one_line(), (words, done.err)
    assert run(tmp_path, "generate", out / "data", *GENERATE).status == 2
    assert run(tmp_path, "verify", data).status == 0
