"""Sizes of samples by index."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from emulator.config.catalog import find
from emulator.config.recipe import SizeSpec, load_recipe
from emulator.dataset.plan import DatasetPlan, files_for, outlook
from emulator.dataset.sizes import SPACING, size_table, sizes_of, table_moments
from emulator.errors import SpecError

KITS19_MEAN, KITS19_SD = 146_600_628, 68_341_808


@pytest.mark.parametrize("recipe", ["kits19", "tiny"])
@pytest.mark.parametrize("distribution", ["lognormal", "mlperf", "fixed"])
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_ten_thousand_samples_have_the_recipes_moments(recipe, distribution, seed):
    spec = load_recipe(recipe, [f"size.distribution={distribution}"])
    look = outlook(DatasetPlan(recipe=spec, seed=seed, files=10_000))
    assert look.mean == pytest.approx(spec.size.bytes_mean, rel=0.01)
    if distribution == "fixed":
        assert look.sd < 1
    else:
        assert look.sd == pytest.approx(spec.size.bytes_sd, rel=0.03)
        assert look.smallest > 0.98 * spec.size.bytes_min and look.largest < 1.02 * spec.size.bytes_max


def test_the_lognormal_fits_the_real_cases():
    """Kolmogorov-Smirnov against the 210 cases: no reason to reject, as there is for the normal."""
    spec = load_recipe("kits19").size
    table = find("datasets", "kits19").with_name("seed_stats.csv")
    cases = np.genfromtxt(table, delimiter=",", names=True, dtype=None, encoding=None)
    axes = zip(("depth", "height", "width"), "zyx", SPACING, strict=True)
    shape = [np.floor(cases[f"{axis}_voxels"] * cases[f"spacing_{z}_mm"] / mm) for axis, z, mm in axes]
    real = np.sort(5 * np.prod(np.maximum(shape, spec.min_edge), axis=0) + 256)
    assert len(real) == 210
    assert real.mean() == pytest.approx(KITS19_MEAN, rel=2e-3)
    assert real.std() == pytest.approx(KITS19_SD, rel=2e-3)

    def p_value(distribution: str) -> float:
        table = size_table(replace(spec, distribution=distribution))
        share = np.interp(real, table, np.linspace(0, 1, len(table)))
        count = len(real)
        steps = np.arange(count)
        distance = max(((steps + 1) / count - share).max(), (share - steps / count).max())
        scaled = (count**0.5 + 0.12 + 0.11 / count**0.5) * distance
        return float(2 * sum((-1) ** (k - 1) * np.exp(-2 * (k * scaled) ** 2) for k in range(1, 100)))

    assert p_value("lognormal") > 0.5 > p_value("mlperf")


@settings(max_examples=60)
@given(
    st.sampled_from(["lognormal", "mlperf"]),
    st.integers(200_000, 10**9),
    st.floats(0.05, 0.6),
    st.floats(2.0, 4.0),
    st.integers(1, 32),
)
def test_moments_are_reached_or_refused(distribution, mean, spread, reach, edge):
    low = max(mean * max(1 - 1.6 * spread, 0.15), 5.0 * edge**3)
    if low > 0.9 * mean:
        return
    spec = SizeSpec(
        distribution=distribution,
        bytes_mean=mean,
        bytes_sd=int(mean * spread),
        bytes_min=int(low),
        bytes_max=int(mean * (1 + reach * spread)),
        min_edge=edge,
    )
    try:
        table = size_table(spec)
    except SpecError as error:
        assert "bytes_sd" in str(error)
        return
    found = table_moments(table)
    assert found[0] == pytest.approx(mean, rel=1e-4) and found[1] == pytest.approx(spec.bytes_sd, rel=1e-4)
    assert table.min() >= spec.bytes_min * 0.999 and table.max() <= spec.bytes_max * 1.001


@settings(max_examples=50)
@given(st.integers(0, 2**31), st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_a_shape_depends_on_seed_and_index_only(seed, indices):
    sizes = sizes_of(load_recipe("tiny").size, seed)
    together = sizes.shapes(np.array(indices))
    alone = np.concatenate([sizes.shapes(np.array([index])) for index in indices])
    assert np.array_equal(together, alone)
    assert together.min() >= 32, "the crop fits"


def test_a_size_becomes_the_least_number_of_files():
    plan = DatasetPlan(recipe=load_recipe("tiny"), seed=0, files=1)
    files = files_for(plan, 10**9)
    total = [outlook(replace(plan, files=n)).total for n in (files - 1, files)]
    assert total[0] < 10**9 <= total[1]
