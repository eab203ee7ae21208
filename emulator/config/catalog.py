"""What comes with feedrate, found by name: workloads, recipes, models, systems. A path always works too."""

from __future__ import annotations

import difflib
import sysconfig
from pathlib import Path
from typing import Literal

from emulator.errors import SpecError

Folder = Literal["workloads", "workloads/checkpoints", "datasets", "results"]


def content_folder(folder: Folder) -> Path:
    """The folder of that name: in the checkout when run from one, else as installed.

    Raises SpecError when neither is there (a broken installation).
    """
    checkout = Path(__file__).resolve().parents[2]
    installed = Path(sysconfig.get_path("data")) / "share" / "feedrate"
    places = [checkout / folder] if (checkout / "setup.cfg").is_file() else []
    for place in (*places, installed / folder):
        if place.is_dir():
            return place
    raise SpecError(f"the folder {folder} of feedrate is missing under {installed}", "reinstall feedrate")


def names(folder: Folder) -> list[str]:
    """Names of what is in the folder: files `NAME.toml`, or folders with a recipe.toml."""
    place = content_folder(folder)
    files = [path.stem for path in place.glob("*.toml")]
    folders = [path.parent.name for path in place.glob("*/recipe.toml")]
    return sorted(files + folders)


def find(folder: Folder, name: str) -> Path:
    """The TOML file for a name of the catalogue, or for a path. Raises SpecError."""
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
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    kind = {
        "workloads": "workload",
        "workloads/checkpoints": "model",
        "datasets": "recipe",
        "results": "system",
    }[folder]
    raise SpecError(
        f"there is no {kind} {name!r}",
        f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known),
    )
