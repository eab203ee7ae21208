"""What an imported YAML becomes: a workload TOML, and a recipe TOML for its dataset."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from emulator.errors import SpecError
from emulator.mlperf.workload import Converted
from emulator.spec.recipe import Recipe
from emulator.spec.toml import Source, build
from emulator.spec.toml_text import toml_text

_SPREAD = 3.0
"""Standard deviations of ln(bytes) on either side of the median within which sizes are drawn."""
_LARGEST = 2**32 - 2**20


def check_new(path: Path, force: bool) -> None:
    """Raises SpecError when `path` is there already, unless `force`, or is no place for a file."""
    if path.is_dir():
        raise SpecError(f"{path} is a folder", "give the file that is to be written")
    if path.exists() and not force:
        raise SpecError(f"{path} is there already", "choose another --out, or add --force")


def workload_text(converted: Converted, origin: str) -> str:
    """The workload as TOML, with what did not come along as comments."""
    head = [f"# Imported by feedrate from {origin}."]
    if converted.left_out:
        head.append("# Left out of it:")
        head += [f"#   {one.key} = {_short(one.value)}: {one.why}" for one in converted.left_out]
    return "\n".join(map(_comment, head)) + "\n" + toml_text(converted.table)


def recipe_table(converted: Converted) -> dict[str, Any]:
    """A recipe for the dataset that the YAML describes. Raises SpecError.

    Sizes are lognormal with the stated mean and standard deviation: DLIO draws its own from a product of
    two normals, whose standard deviation is a third smaller than stated.
    """
    sample = converted.workload.sample
    size: dict[str, Any] = {"distribution": "fixed", "bytes_mean": sample.bytes_mean}
    if sample.bytes_sd:
        sigma = math.sqrt(math.log1p((sample.bytes_sd / sample.bytes_mean) ** 2))
        median = sample.bytes_mean * math.exp(-(sigma**2) / 2)
        low, high = median * math.exp(-_SPREAD * sigma), median * math.exp(_SPREAD * sigma)
        size = {
            "distribution": "lognormal", "bytes_mean": sample.bytes_mean, "bytes_sd": sample.bytes_sd,
            "bytes_min": max(1, math.floor(low)), "bytes_max": min(_LARGEST, math.ceil(high)),
        }  # fmt: skip
    table = {
        "name": converted.workload.name,
        "title": converted.workload.title,
        "format": sample.format,
        "files": converted.files or 1,
        "samples_per_file": converted.samples_per_file,
        "size": size,
    }
    try:
        build(Recipe, table, Source("the recipe"))
    except SpecError as error:
        raise SpecError(f"no recipe for this dataset: {error.what}", error.hint) from None
    return table


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _comment(line: str) -> str:
    """One line without control characters: TOML takes none in a comment."""
    return "".join(letter if letter.isprintable() else " " for letter in line)
