"""Workloads and recipes that come with feedrate, found by name; a path always works too."""

from __future__ import annotations

import difflib
import sysconfig
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Literal

from emulator.config.profile import ProfileChoice, load_profile
from emulator.config.reader import Source, build, override, read_toml
from emulator.config.workload import LoaderSpec, Workload
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


def load_workload(name: str, settings: Sequence[str] = ()) -> Workload:
    """The workload of that name or path, with `--set` settings laid over it. Raises SpecError."""
    path = find("workloads", name)
    table, source = read_toml(path)
    source = replace(source, settings=tuple(settings))
    table = _with_table(table)
    for setting in settings:
        table = _with_table(override(table, [setting]))
    if isinstance(table.get("accelerator"), dict) and "profile" in table["accelerator"]:
        table = _resolved(table, source, path.parent)
    return build(Workload, table, source)


def load_loader(name: str, settings: Sequence[str] = ()) -> LoaderSpec:
    """The loader of a workload alone, for those who have an accelerator. Raises SpecError."""
    table, source = read_toml(find("workloads", name))
    loader = override(table, settings).get("loader", {})
    return build(LoaderSpec, loader, replace(source, settings=tuple(settings)), ("loader",))


def _with_table(table: dict[str, Any]) -> dict[str, Any]:
    """`accelerator = "profiles/x.toml"` is short for a table with the key `profile`."""
    named = table.get("accelerator")
    return {**table, "accelerator": {"profile": named}} if isinstance(named, str) else table


def _resolved(table: dict[str, Any], source: Source, folder: Path) -> dict[str, Any]:
    """`table` with what its profile says at its batch size. Raises SpecError, StorageError."""
    choice = build(ProfileChoice, table["accelerator"], source, ("accelerator",))
    loader = build(LoaderSpec, table.get("loader", {}), source, ("loader",))
    places = [folder / choice.profile, Path(choice.profile), content_folder("workloads") / choice.profile]
    found = next((place for place in places if place.is_file()), None)
    where = source.at(("accelerator", "profile"))
    if found is None:
        raise SpecError(f"{where}: there is no profile {choice.profile}", "feedrate calibrate makes one")
    try:
        accelerator = choice.accelerator(load_profile(found), loader.batch_size)
    except SpecError as error:
        raise SpecError(f"{found}: {error.what}", error.hint) from None
    values = {key: value for key, value in asdict(accelerator).items() if value is not None}
    if accelerator.quantiles:
        values["quantiles"] = list(accelerator.quantiles)
    said = f"measured: {choice.profile}, variant {accelerator.variant}"
    sources = {f"accelerator.{key}": said for key in ("step_seconds", "step_batch_size", "quantiles")}
    return {**table, "accelerator": values, "sources": {**table.get("sources", {}), **sources}}
