"""A small dataset that is made once a module, by `feedrate generate` with the module's GENERATE."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from faults.harness import load_verbs, run

from emulator.config.recipe import load_recipe
from emulator.dataset.formats import format_named


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
