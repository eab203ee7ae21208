"""The Python surface: its doctest runs, and importing the package costs a rank nothing."""

import doctest
import re
import subprocess
import sys
from pathlib import Path

import pytest
from command import ANSWERED, feedrate
from synthetic_results import plain_sweep, steps_of

import emulator
from emulator import api
from emulator.errors import DatasetError, FeedrateError, SpecError
from emulator.record.out import read_result, write_result
from emulator.record.steps import write_steps

SCRIPTS = Path(__file__).resolve().parents[2] / "docs" / "scripts.md"


@pytest.mark.long
def test_the_doctest_of_the_surface():
    assert doctest.testmod(api).failed == 0


def test_importing_the_package_imports_nothing_of_it():
    code = (
        "import sys, emulator; "
        "print([name for name in sys.modules if name.startswith(('emulator', 'numpy'))])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['emulator']"


def test_a_result_is_a_table_figures_and_a_sentence(tmp_path):
    made = plain_sweep()
    write_result(tmp_path, made)
    write_steps(tmp_path, steps_of(made))
    result = emulator.read(tmp_path)
    assert result.table["ranks"].tolist() == [1, 2, 4, 8, 12, 14, 15, 16, 18, 20, 24, 32]
    assert 12 < emulator.find_knee(result.points).n_au < 20
    charts = emulator.figures(result)
    assert "Throughput and the knee" in str(charts[0].title)
    assert "14 A100s" in result.answer.sentence and "<svg" in result._repr_html_()
    assert len(repr(result)) < 300 and result.answer.sentence in repr(result)
    charts[0].save(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    shown = api.report(tmp_path)
    shown.write(tmp_path / "a.md")
    assert shown.result == result.run and "| ranks |" in (tmp_path / "a.md").read_text()
    assert "no difference" in emulator.compare([tmp_path, tmp_path]).moves[0]
    with pytest.raises(FeedrateError, match="txt"):
        shown.write(tmp_path / "a.txt")


def test_a_job_is_recorded(tmp_path):
    seen = api.record([sys.executable, "-c", "raise SystemExit(3)"], out=tmp_path / "job")
    assert seen.observation.status == 3 and seen.described is None and seen.refused


def test_the_surface_is_what_it_says():
    assert set(api.__all__) - set(dir(emulator)) == {"run", "sweep", "record", "report", "ask", "Asked"}
    with pytest.raises(AttributeError):
        emulator.nothing  # noqa: B018


@pytest.mark.long
@pytest.mark.mpi
def test_a_study_in_python_is_that_of_the_commands(tmp_path, monkeypatch):
    """docs/scripts.md's, as it stands there; the sweep's run.json is the command's but for time and place."""
    monkeypatch.chdir(tmp_path)
    (block,) = re.findall(
        r"```python\n(import feedrate\n\nfeedrate.generate.*?)```", SCRIPTS.read_text(), re.DOTALL
    )
    subprocess.run([sys.executable, "-c", block], check=True, capture_output=True)
    assert (tmp_path / "knee.svg").is_file()
    words = ("sweep", "data", "--workload", "unet3d-tiny", "--out", "again", "--counts", "1")
    done = feedrate(*words, "--steps", 2, "--loader", "direct", "--storage", "shaped:400MB/s", cwd=tmp_path)
    assert done.status in ANSWERED, done.err
    first, second = (read_result(tmp_path / out) for out in ("sweep", "again"))
    for name in ("kind", "workload", "dataset", "storage", "loader"):
        assert getattr(first, name) == getattr(second, name)
    assert [point.ranks for point in first.points] == [1, 4, 6, 8]
    with pytest.raises(FeedrateError, match="nowhere"):
        api.run("nowhere", "unet3d-tiny", 2, out="out", loader="direct")


def test_the_alias_has_the_functions_that_the_package_cannot_export():
    """`emulator.sweep(...)` is "module is not callable": `emulator.sweep` is a room."""
    import feedrate

    assert feedrate.sweep is api.sweep and feedrate.read is api.read and feedrate.ask is api.ask


def test_a_wrong_dataset_is_an_exception_with_its_reason(tiny, tmp_path):
    """It was "ended with status 2", and the reason only on descriptor 2."""
    with pytest.raises(SpecError, match="is not the workload's"):
        api.run(tiny, "unet3d-a100", 1, out=tmp_path / "out")
    with pytest.raises(SpecError, match="no workload|did you mean"):
        api.sweep(tiny, "unet3d-nothing", ranks=2, out=tmp_path / "out")


def test_errors_of_this_process_are_exceptions_too(tmp_path, capsys):
    """They printed a line and ended Python, also a notebook's."""
    (tmp_path / "mine").write_text("not feedrate's")
    with pytest.raises(DatasetError, match="no dataset"):
        api.verify(tmp_path / "nowhere")
    with pytest.raises(DatasetError, match="is not empty"):
        api.generate(tmp_path, "tiny", files=2)
    assert capsys.readouterr().err == ""


@pytest.mark.mpi
def test_what_was_required_is_in_the_answer(tiny, tmp_path):
    """A gate that was not met was a FeedrateError without a reason, one that could not be told was lost."""
    slow = {"loader": "direct", "storage": "shaped:20MB/s", "steps": 4, "require": 1}
    assert api.run(tiny, "unet3d-tiny", 1, out=tmp_path / "out", **slow).answer.gate.status == 10
