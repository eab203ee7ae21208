"""Recipes: what they state, and what is refused."""

from __future__ import annotations

import pytest

from emulator.config.recipe import load_recipe
from emulator.errors import SpecError


@pytest.mark.parametrize("name", ["tiny", "kits19"])
def test_every_number_has_a_source(name):
    recipe = load_recipe(name)
    assert recipe.name == name
    stated = {
        "files",
        *(f"size.{key}" for key in ("bytes_mean", "bytes_sd", "bytes_min", "bytes_max", "min_edge")),
    }
    assert stated <= set(recipe.sources)


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("size.bytes_men=1", "did you mean 'size.bytes_mean'"),
        ("format=zarr", "must be one of 'bytes'"),
        ("payload=zeros", "payload 'zeros' is not known"),
        ("payload=ratio=900", "ratio=R"),
        ("samples_per_file=4", "hold many samples a file"),
        ("samples_per_file=9000000000000000000", "more than 1 PiB"),
        ("size.bytes_max=5GiB", "below 4 GiB"),
        ("size.bytes_min=100", "min_edge of 32 voxels"),
        ("size.distribution=normal", "must be one of"),
        ("files=0", "files must be at least 1"),
    ],
)
def test_a_mistake_is_one_line_that_names_it(setting, said):
    with pytest.raises(SpecError) as error:
        load_recipe("tiny", [setting])
    assert said in str(error.value)
