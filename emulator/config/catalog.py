"""Find the content of the package by name: workloads, recipes, models, systems. A path works, too."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path
from typing import Literal

from emulator.errors import SpecError

Folder = Literal["workloads", "workloads/checkpoints", "datasets", "results", "results/systems"]


def content_folder(folder: Folder) -> Path:
    """Return the folder of that name. Raises SpecError when the installation is broken."""
    # In a checkout `emulator/content` holds links to the top-level folders; a wheel holds their files.
    place = Path(str(files("emulator"))) / "content" / folder
    if not place.is_dir():
        raise SpecError(f"the folder {place} is missing", "reinstall feedrate")
    return place


def names(folder: Folder) -> list[str]:
    """Return the names in the folder: files `NAME.toml`, or folders with a recipe.toml."""
    place = content_folder(folder)
    single = [path.stem for path in place.glob("*.toml")]
    folders = [path.parent.name for path in place.glob("*/recipe.toml")]
    return sorted(single + folders)


def find(folder: Folder, name: str) -> Path:
    """Return the TOML file for a name of the catalogue, or for a path. Raises SpecError."""
    given = Path(name)
    if given.suffix == ".toml" or len(given.parts) > 1:
        if given.is_file():
            return given
        if (given / "recipe.toml").is_file():
            return given / "recipe.toml"
        raise SpecError(f"there is no file {name}", "check the path")
    place = content_folder(folder)
    for path in (place / f"{name}.toml", place / name / "recipe.toml"):
        if path.is_file():
            return path
    known = names(folder)
    of_model = [other for other in known if other.startswith(f"{name.partition('-')[0]}-")]
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.9 if of_model else 0.4)
    kind = {
        "workloads": "workload",
        "workloads/checkpoints": "model",
        "datasets": "recipe",
        "results/systems": "system",
    }[folder]
    hint = "known: " + ", ".join(known)
    if close:
        hint = f"did you mean {close[0]!r}?"
    elif of_model:  # the same model, with the accelerators that there are
        hint = f"use {' or '.join(of_model)}"
    raise SpecError(f"there is no {kind} {name!r}", hint)
