"""CONTRIBUTING.md: take the code of each recipe from the page, add it to a copy of feedrate, and use it."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from synthetic_results import plain_sweep

from emulator.record.out import write_result

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()


def recipes() -> dict[str, dict[str, str]]:
    """Title of each recipe -> file -> code that the page adds to the file."""
    found: dict[str, dict[str, str]] = {}
    for part in PAGE.split("\n## ")[1:]:
        blocks = re.findall(r"```(?:python|toml)\n# (\S+)\n(.*?)```", part, re.DOTALL)
        if blocks:
            found[part.partition("\n")[0]] = dict(blocks)
    return found


RECIPES = recipes()


@pytest.fixture(params=RECIPES)
def extended(request, tmp_path) -> tuple[str, Path]:
    """The title of a recipe, and a copy of the sources with the recipe added."""
    for name in ("emulator", "workloads", "datasets"):
        shutil.copytree(ROOT / name, tmp_path / name, symlinks=True)  # compiled, too: that takes seconds
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    for name, code in RECIPES[request.param].items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        before = path.read_text() if path.exists() else ""
        path.write_text(f"{before}\n\n{code}")
        if path.name == "pyproject.toml":
            install(path)
    return request.param, tmp_path


def install(project: Path) -> None:
    """Write the metadata that pip writes when it installs `project`, beside its modules."""
    table = tomllib.loads(project.read_text())["project"]
    folder = project.parent / f"{table['name'].replace('-', '_')}-{table['version']}.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text(f"Name: {table['name']}\nVersion: {table['version']}\n")
    lines = [
        line
        for group, names in table["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {value}" for name, value in names.items()))
    ]
    (folder / "entry_points.txt").write_text("\n".join(lines))


def feedrate(folder: Path, *words: object) -> str:
    """Run the command from the extended copy; fail unless it succeeds. Returns its output."""
    done = subprocess.run(
        [sys.executable, "-m", "emulator", *map(str, words)], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "PYTHONPATH": f"{folder}:{folder / 'acme'}"}, timeout=100,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


SMALL = ("--set", "size.bytes_mean=300kB", "--set", "size.bytes_sd=20kB")
DATA = ("generate", "data", "--recipe", "tiny", "--files", 12, *SMALL)
RUN = (
    *("run", "data", "--workload", "unet3d-tiny", "--loader", "direct", "--steps", 2, "--out", "out"),
    "--mismatched-dataset",
)
BOXES = ("--set", "format=boxes")
USES = {
    "A file format": [(*DATA, *BOXES), ("verify", "data"), (*RUN, "--set", "sample.format=boxes")],
    "A workload": [
        ("workloads", "segmenter-x1"),
        ("datasize", "--workload", "segmenter-x1", "--accelerators", 2),
    ],
    "A flag": [DATA, RUN, ("report", "out")],
    "A figure": [("report", "out", "--html", "page.html")],
}
SHOWS = {"A workload": "segmenter-x1", "A flag": "too few for a rate", "A figure": ""}


def test_each_recipe_has_its_use():
    assert RECIPES.keys() == USES.keys()


@pytest.mark.mpi
def test_a_recipe_works_as_it_is_written(extended):
    title, folder = extended
    if title == "A figure":
        (folder / "out").mkdir()
        write_result(folder / "out", plain_sweep())
    shown = "".join(feedrate(folder, *words) for words in USES[title])
    assert SHOWS.get(title, "") in shown
    if title == "A figure":
        assert "Length of the points" in (folder / "page.html").read_text()


@pytest.mark.parametrize("title", RECIPES)
def test_each_recipe_lists_the_files_that_it_changes(title):
    part = next(part for part in PAGE.split("\n## ") if part.startswith(title))
    listed = set(re.findall(r"^\| `([^`]+)` \|", part, re.MULTILINE))
    assert RECIPES[title].keys() <= listed
    new = {name for name in RECIPES[title] if not (ROOT / name).exists()}
    assert all((ROOT / name).is_file() for name in listed - new)
