"""Find the content of the package by name: workloads, recipes, models, systems. A path works, too."""

from __future__ import annotations

import difflib
from importlib.resources import files
from pathlib import Path
from typing import Literal

from emulator.errors import SpecError

Folder = Literal["workloads", "workloads/checkpoints", "datasets", "results", "results/systems"]


_KINDS = {
    "workloads": "workload",
    "workloads/checkpoints": "model",
    "datasets": "recipe",
    "results/systems": "system",
}


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
    path = Path(name)
    is_path = path.suffix == ".toml" or len(path.parts) > 1
    place = Path() if is_path else content_folder(folder)
    for file in (path if is_path else place / f"{name}.toml", place / name / "recipe.toml"):
        if file.is_file():
            return file
    if is_path:
        raise SpecError(f"there is no file {name}", "check the path")
    raise SpecError(f"there is no {_KINDS[folder]} {name!r}", _nearest(name, names(folder)))


def _nearest(name: str, known: list[str]) -> str:
    """Return the hint on an unknown name."""
    of_model = [other for other in known if other.startswith(f"{name.partition('-')[0]}-")]
    # unet3d-v10 is a slip, unet3d-mi355 is a model without that accelerator.
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.9 if of_model else 0.4)
    if close:
        return f"did you mean {close[0]!r}?"
    return f"use {' or '.join(of_model)}" if of_model else "known: " + ", ".join(known)
