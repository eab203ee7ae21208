"""The library that makes calls fail; a small dataset, made once a module with the module's GENERATE."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from faults.harness import build_shim, load_verbs, run

from emulator.config.recipe import load_recipe
from emulator.dataset.formats import format_named


@pytest.fixture(scope="session")
def shim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_shim(tmp_path_factory.mktemp("shim"))


@pytest.fixture(scope="module")
def warm() -> None:
    """Import what forks should not each import again."""
    load_verbs()
    format_named("npz")
    load_recipe("tiny")


@pytest.fixture(scope="module")
def made(request: pytest.FixtureRequest, warm: None, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset; tests change copies of it."""
    folder = tmp_path_factory.mktemp("made") / "data"
    done = run(folder.parent, "generate", folder, *request.module.GENERATE)
    assert done.status == 0, done.err
    return folder


@pytest.fixture
def data(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "data"))
