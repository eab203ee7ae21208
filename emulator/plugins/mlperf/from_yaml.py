"""Import a YAML file of DLIO as a TOML file: a training as a workload, a generated dataset as a recipe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from emulator.errors import SpecError
from emulator.files import refuse_existing
from emulator.plugins.mlperf.config import read_config
from emulator.plugins.mlperf.workload import Converted, convert, recipe_text, workload_text
from emulator.record.out import write_output
from emulator.registry import FORMATS


def import_yaml(
    path: Path, out: Path, overrides: Sequence[str] = (), recipe: Path | None = None, *, force: bool = False
) -> Converted:
    """Write the workload in the YAML file `path` to `out`, or its recipe if it only generates a dataset.

    `overrides` are Hydra's, `recipe` is a file for the recipe beside a workload. Nothing is written unless
    everything is valid. Raises SpecError, StorageError.
    """
    if out.suffix != ".toml":
        raise SpecError(f"--out {out} does not end in .toml", "a workload is a TOML file")
    for file in (out, recipe):
        if file is not None and file.is_dir():
            raise SpecError(f"{file} is a folder", "give a file to write")
        if file is not None:
            refuse_existing(file, force)
    config = read_config(path, overrides)
    if config.purpose == "checkpoints":
        raise SpecError(f"{path}: describes checkpoints", "feedrate checkpoint --models lists the models")
    if config.purpose == "nothing":
        why = (
            "its workflow says so" if config.at("workflow.train") is False else "no section dataset or train"
        )
        raise SpecError(f"{path}: does not train ({why})", "import the file of the training itself")
    converted = convert(config, out.stem)
    form = converted.workload.sample.format
    if form not in FORMATS:
        raise SpecError(f"{path}: feedrate does not read the format {form}", f"it reads {FORMATS}")
    if config.purpose == "generation":
        if recipe is not None:
            raise SpecError(f"{path}: generates a dataset, and --out is its recipe", "leave out --recipe")
        write_output(out, recipe_text(converted, path.name))
        return converted
    recipe_toml = recipe_text(converted, path.name) if recipe else ""
    write_output(out, workload_text(converted, path.name))
    if recipe is not None:
        write_output(recipe, recipe_toml)
    return converted
