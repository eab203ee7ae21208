"""The catalogue beside MLPerf's YAML files: `make test-mlperf MLPERF_STORAGE=DIR` says what moved."""

from __future__ import annotations

import os
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from emulator.config.catalog import names
from emulator.config.checkpoint import checkpoint_models, load_checkpoint_model
from emulator.config.workload import load_workload
from emulator.plugins.mlperf.config import read_config
from emulator.plugins.mlperf.workload import convert

CHECKOUT = Path(os.environ.get("MLPERF_STORAGE", "."))
PUBLISHED = {
    "sample": ("format", "bytes_mean", "bytes_sd", "samples_per_file", "bytes_read"),
    "access": ("pattern", "streams", "shuffle_buffer", "columns", "chunk_bytes"),
    "loader": ("batch_size", "workers", "prefetch"),
    "accelerator": ("step_seconds", "step_batch_size"),
    "training": ("epochs", "au_threshold"),
}
"""Section -> keys that the YAML of a training gives; the other keys are feedrate's own."""
OLDER = {"unet3d-v100", "bert-v100", "unet3d-a100-v04"}
"""Workloads of v0.4 and v0.5, whose YAML files no newer version has."""


def described(name: str) -> tuple[dict[str, Any], str]:
    """The workload or checkpoint model `name` as a table, and where its numbers come from."""
    spec = load_checkpoint_model(name) if name in checkpoint_models() else load_workload(name)
    return asdict(spec), spec.sources.get("yaml", "")


CATALOGUE = [name for name in (*names("workloads"), *checkpoint_models()) if described(name)[1]]


def test_every_published_workload_names_file_repository_and_commit():
    published = {
        name for name in names("workloads") if load_workload(name).accelerator.provenance != "chosen"
    }
    assert published - set(CATALOGUE) == OLDER
    for name in CATALOGUE:
        assert re.fullmatch(r"configs/\S+\.yaml, github\.com/\S+ [0-9a-f]{12} \(.*\)", described(name)[1]), (
            name
        )


@pytest.mark.mlperf
@pytest.mark.parametrize("name", [name for name in CATALOGUE if name not in checkpoint_models()])
def test_the_numbers_are_those_of_the_yaml(name):
    ours, source = described(name)
    path = CHECKOUT / source.partition(",")[0]
    if not path.is_file():
        pytest.skip(f"{CHECKOUT} has no {source.partition(',')[0]}: another version, or no checkout")
    theirs = asdict(convert(read_config(path), name).workload)
    moved = [
        f"{name}: {section}.{key} is {theirs[section][key]} in {path}, {ours[section][key]} here"
        for section, of_section in PUBLISHED.items()
        for key in of_section
        if theirs[section][key] != ours[section][key]
    ]
    print(*moved, sep="\n", end="")
    assert not moved, "\n".join(moved)
