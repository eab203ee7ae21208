"""A stranger's package (stranger/) extends feedrate without a change in emulator/: built, installed, used."""

import importlib
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import Done, feedrate
from contracts.format_contract import FormatContract

STRANGER = Path(__file__).parent / "stranger"
SMALL = ("--recipe", "tiny", "--set", "size.bytes_mean=300kB", "--set", "size.bytes_sd=20kB")
SWEEP = ("--workload", "unet3d-tiny", "--loader", "direct", "--steps", 2, "--mismatched-dataset")

pytestmark = pytest.mark.long


class TestShelf(FormatContract):
    """The contract of every format holds for a stranger's."""

    name = "shelf"

    @pytest.fixture
    def form(self, installed, monkeypatch):
        monkeypatch.syspath_prepend(installed)
        return importlib.import_module("stranger.shelf").Shelf()

    def open_elsewhere(self, files, sample):
        assert [path.read_bytes()[32:] for path in files] == [sample.x.tobytes(), sample.y.tobytes()]


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """A folder into which pip has installed the stranger's wheel."""
    made = tmp_path_factory.mktemp("wheel")
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    source = made / "source"
    subprocess.run(["cp", "-r", STRANGER, source], check=True)  # setuptools builds beside the sources
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", made, source], check=True)
    (wheel,) = made.glob("*.whl")
    subprocess.run([*pip, "install", "--no-deps", "--target", made / "site", wheel], check=True)
    return made / "site"


@pytest.fixture
def ours(installed, tmp_path):
    """Runs `feedrate WORDS` beside the stranger's package; fails on another exit status than expected."""
    (tmp_path / "depot").mkdir()

    def run(*words: object, statuses: tuple[int, ...] = (0,)) -> Done:
        done = feedrate(
            *words, cwd=tmp_path, PYTHONPATH=str(installed), DEPOT=str(tmp_path / "depot"), timeout=150
        )
        assert done.status in statuses, done.err
        return done

    return run


@pytest.mark.mpi
def test_a_format_with_a_folder_for_each_sample(ours, tmp_path):
    make = ("generate", "data", *SMALL, "--set", "format=shelf", "--files", 6)
    data = tmp_path / "data"
    ours(*make)
    assert sorted(path.name for path in (data / "sample_0000005.shelf").iterdir()) == ["x", "y"]
    assert "6 of 6 files checked, 0 faults" in ours("verify", "data").out
    ours("run", "data", *SWEEP, "--set", "sample.format=shelf", "--out", "out")
    for loader in ("patient", "torch"):
        run = ("run", "data", *SWEEP[:2], "--loader", loader, *SWEEP[4:])
        ours(*run, "--set", "sample.format=shelf", "--out", loader)

    kept = tmp_path / "kept"
    shutil.copytree(data, kept, ignore=shutil.ignore_patterns("manifest.json", "samples-*", ".feedrate"))
    ours("adopt", "kept", "--format", "shelf")
    assert "6 of 6 files checked, 0 faults" in ours("verify", "kept").out

    (data / "sample_0000002.shelf/y").write_bytes(b"")
    assert "sample_0000002.shelf" in ours("verify", "data", statuses=(3,)).out
    ours("verify", "data", "--repair")

    # Own before you delete: what somebody else put into a sample's folder stays, and so does the folder.
    note = data / "sample_0000003.shelf/note"
    note.write_text("mine")
    assert "extra" in ours("verify", "data", statuses=(3,)).out
    ours("generate", "data", *SMALL, "--files", 2, "--force")
    kept = sorted(path.name for path in data.iterdir() if path.is_dir() and path.name != ".feedrate")
    assert kept == ["sample_0000003.shelf"] and note.read_text() == "mine"
    assert [path.name for path in note.parent.iterdir()] == ["note"]


def test_files_in_the_way_of_a_samples_folder_are_refused(ours, tmp_path):
    data = tmp_path / "data"
    make = ("generate", "data", *SMALL, "--set", "format=shelf")
    ours(*make, "--files", 2)
    (data / "sample_0000003.shelf").write_text("somebody's file")
    assert "in the way" in ours(*make, "--files", 4, statuses=(3,)).one_line()
    assert (data / "sample_0000003.shelf").read_text() == "somebody's file"
    (data / "sample_0000003.shelf").unlink()
    ours(*make, "--files", 4)
    (data / "sample_0000001.shelf/x").write_text("of another size")
    assert "somebody else's" in ours(*make, "--files", 4, "--force", statuses=(3,)).one_line()


def test_an_object_store(ours):
    ours("generate", "depot://bucket/data", *SMALL, "--files", 3)
    assert "3 of 3 files checked, 0 faults" in ours("verify", "depot://bucket/data").out
    assert "is not known" in ours("verify", "depot://bucket/data?speed=3", statuses=(2,)).one_line()


def test_a_command_with_a_kind_of_result_and_a_figure(ours, tmp_path):
    ours("generate", "data", *SMALL, "--files", 3)
    assert "A stat takes" in ours("stat", "data", "--out", "out").out
    assert "A stat takes" in ours("report", "out", "--html", "page.html").out
    assert "Time of each stat" in (tmp_path / "page.html").read_text()
    # Where the package is not installed its result is refused with one line.
    assert (
        "no installed package has the kind of result stat" in feedrate("report", tmp_path / "out").one_line()
    )


def test_a_broken_plug_in_is_one_line(ours):
    assert "generate" in ours("--help").out
    done = ours("broken", statuses=(7,))
    assert "broken" in done.one_line() and "a_package_that_nobody_has" in done.one_line()
    lines = [line for line in ours("doctor", statuses=(0, 1)).out.splitlines() if "command broken" in line]
    assert len(lines) == 1
    ours("workloads")
