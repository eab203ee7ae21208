"""Rules of the code that ruff and import-linter do not check."""

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from emulator import __version__
from emulator.errors import MissingError
from emulator.registry import GROUPS

ROOT = Path(__file__).resolve().parents[2]
MODULES = sorted((ROOT / "emulator").rglob("*.py"))


@pytest.mark.parametrize("folder", ["datasets", "workloads", "launch", "results"])
def test_content_folders_hold_no_python(folder):
    assert (ROOT / folder).is_dir()
    assert not list((ROOT / folder).rglob("*.py"))


def test_the_readme_fits():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 90
    assert "make demo" in " ".join(" ".join(lines).split()[:100])


OWNERS = {
    "torch": {"loader/worker.py", "plugins/calibrate"},
    "nibabel": {"plugins/formats/nifti.py", "plugins/kits/cases.py"},
    "h5py": {"plugins/formats/hdf5.py"},
    "mpi4py": {"launch/mpi.py"},
    "dask": {"plugins/dask"},
    "distributed": {"plugins/dask"},
    "pyarrow": {"record", "plugins/formats/parquet.py"},
    "google_crc32c": {"plugins/formats/tfrecord.py"},
    "altair": {"report/charts.py"},
    "pynvml": {"plugins/calibrate/health.py"},
    "obstore": {"plugins/objects/s3.py"},
    "rados": {"plugins/objects/rados.py"},
    "jinja2": {"report/html.py"},
    "vl_convert": {"report/charts.py"},
    "yaml": {"plugins/mlperf/bounded.py"},
}


@cache
def nodes(module: Path) -> list[ast.AST]:
    return list(ast.walk(ast.parse(module.read_text())))


def imported(module: Path) -> set[str]:
    names: set[str] = set()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            names |= {alias.name.partition(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.add(node.module.partition(".")[0])
    return names


def test_heavy_packages_have_one_owner():
    for module in MODULES:
        place = str(module.relative_to(ROOT / "emulator"))
        for name in imported(module) & OWNERS.keys():
            assert any(place.startswith(owner) for owner in OWNERS[name]), f"{place} must not import {name}"


def strings(module: Path) -> Iterator[str]:
    """The string constants of a module, without docstrings."""
    docs = {id(node.value) for node in nodes(module) if isinstance(node, ast.Expr)}
    for node in nodes(module):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.value


def test_no_string_names_a_module_of_ours():
    """Only setup.cfg's entry points do: import-linter sees no import that is hidden in a string."""
    for module in MODULES:
        for text in strings(module):
            assert not re.search(r"\bemulator\.", text), f"{module.relative_to(ROOT)}: {text!r}"


def test_every_entry_point_can_be_imported():
    for group in GROUPS:
        for name in group:
            try:
                assert group.load(name) is not None
            except MissingError as error:
                assert "cannot be imported" not in str(error), (
                    "a package may be missing, a plug-in not broken"
                )


def test_numpy_never_unpickles():
    """ruff forbids eval, exec and shells (S102, S307, S602); it has no rule for allow_pickle."""
    for module in MODULES:
        for node in nodes(module):
            if isinstance(node, ast.keyword) and node.arg == "allow_pickle":
                value = node.value.value if isinstance(node.value, ast.Constant) else None
                assert value is False, f"{module.relative_to(ROOT)}:{node.value.lineno}"


def test_nothing_waits_by_the_wall_clock():
    """NTP and administrators set it; durations are time.monotonic's, and dates record.machine.utc_now's.

    Nor by the age of a file, as heartbeats could be; plugins.kits knows its seeds again by their dates.
    """
    for module in MODULES:
        text = module.read_text()
        assert not re.search(r"\btime\.time(_ns)?\(", text), module.relative_to(ROOT)
        assert module.stem == "cases" or not re.search("st_mtime|getmtime", text), module.relative_to(ROOT)


HEAVY = {
    *("torch", "pandas", "altair", "nibabel", "h5py", "dask", "pyarrow", "scipy", "rich"),
    *("typer", "pydantic"),
}


def test_a_rank_with_the_direct_loader_stays_light():
    """A rank pays for every import, hundreds of times on a host."""
    code = (
        "import sys, emulator.cli.entry, emulator.sweep.ranks, emulator.loader.direct; "
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_citation_and_changelog_name_the_version():
    assert f"\nversion: {__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert __version__ in re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
