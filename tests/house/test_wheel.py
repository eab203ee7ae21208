"""The wheel: nothing importable but `emulator`, beside Hugging Face's `datasets`, and its content found."""

import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
HUGGING_FACE = "datasets==5.2.0"


def run(*words: object) -> str:
    done = subprocess.run([*map(str, words)], capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, ROOT)
    (found,) = folder.glob("feedrate-*.whl")
    return found


def test_the_wheel_holds_one_top_level_module_and_the_content(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("feedrate-")} == {"emulator"}
    shared = {name.partition("/share/feedrate/")[2] for name in names}
    content = [*(ROOT / "workloads").glob("*.toml"), *(ROOT / "datasets").glob("*/recipe.toml")]
    assert {str(path.relative_to(ROOT)) for path in content} <= shared
    assert "emulator/py.typed" in names


@pytest.mark.long
@pytest.mark.timeout(300)
def test_the_wheel_lives_beside_hugging_faces_datasets(wheel, tmp_path):
    venv.create(tmp_path / "venv", with_pip=True)
    python = tmp_path / "venv" / "bin" / "python"
    here = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    # What both need is here already; only the two themselves and what else they lack is installed.
    (here / "ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
    run(python, "-m", "pip", "install", "--quiet", "--constraint", ROOT / "constraints.txt", HUGGING_FACE)
    run(python, "-m", "pip", "install", "--quiet", "--no-deps", "--force-reinstall", wheel)
    code = "import datasets, emulator; print(datasets.__version__, datasets.__file__, emulator.__file__)"
    version, theirs, ours = run(python, "-I", "-c", code).split()
    assert version == HUGGING_FACE.partition("==")[2]
    assert Path(theirs).is_relative_to(here) and Path(ours).is_relative_to(here)
    assert "unet3d-a100" in run(tmp_path / "venv" / "bin" / "feedrate", "workloads")
    run(python, "-m", "pip", "uninstall", "--quiet", "--yes", "feedrate")
    assert Path(theirs).is_file(), "uninstalling feedrate must leave theirs alone"
