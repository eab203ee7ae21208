"""The engine against theory and brute force."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from systems.simulator_scenes import brute_force, lognormal, mean_value_analysis, scene, utilization

from emulator.errors import MissingError
from emulator.plugins.systems import scene as scenes
from emulator.plugins.systems.scene import play

quick = settings(max_examples=30, derandomize=True)
sizes = st.integers(1, 5).flatmap(
    lambda ranks: st.lists(
        st.lists(st.floats(1e3, 1e9), min_size=ranks, max_size=ranks), min_size=1, max_size=5
    )
)
shapes = st.fixed_dictionaries(
    {
        "compute": st.sampled_from([0.0, 0.3, 2.0]),
        "prefetch": st.integers(0, 3),
        "sync": st.booleans(),
        "system": st.sampled_from([1e8, 1e9, 1e12, np.inf]),
        "host": st.sampled_from([5e7, 3e8, np.inf]),
        "rank": st.sampled_from([4e7, 2e8, 1e10]),
        "hosts": st.integers(1, 3),
        "latency": st.sampled_from([0.0, 0.05]),
        "epoch": st.sampled_from([0, 0, 1, 2, 3]),
    }
)


@quick
@given(size=sizes, shape=shapes)
def test_every_rate_is_as_defined(size, shape):
    case = scene(size, **{**shape, "hosts": min(shape["hosts"], len(size[0]))})
    np.testing.assert_allclose(play(case).ready, brute_force(case), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("ranks", [4, 10, 20])
def test_without_read_ahead_ranks_are_customers_of_a_closed_queue(ranks):
    """MVA within 0.5 points of AU; 10 ranks would fill the system if they never computed."""
    think, latency, service = 0.9, 0.1, 0.1
    case = scene(
        lognormal(1500, ranks, seed=ranks), compute=think, prefetch=0, system=100e6 / service, latency=latency
    )
    expected = mean_value_analysis(ranks, think + latency, service) * think / ranks
    assert utilization(case, play(case).ready, warm=20) == pytest.approx(expected, abs=0.005)


@quick
@given(size=sizes, prefetch=st.integers(1, 4), hosts=st.integers(1, 3))
def test_no_byte_is_lost_or_made(size, prefetch, hosts):
    """Without compute the system is busy to the end: the last batch is there at total / C."""
    case = scene(size, compute=0.0, prefetch=prefetch, system=1e8, hosts=min(hosts, len(size[0])))
    assert play(case).ready[-1].max() >= case.size.sum() / 1e8 * (1 - 1e-9)
    even = scene(np.full_like(case.size, 7e6), compute=0.0, prefetch=prefetch, system=1e8)
    assert play(even).ready[-1].max() == pytest.approx(even.size.sum() / 1e8, rel=1e-9)


@pytest.mark.parametrize("sync", [False, True])
@pytest.mark.parametrize("hosts", [1, 7, 24])
def test_rates_are_as_defined_where_compute_times_differ(sync, hosts):
    table = np.random.default_rng(0).uniform(0.5, 1.5, (12, 24))
    limits = {"system": 2.2e9, "host": 2.6e9 / hosts, "hosts": hosts, "latency": 0.01}
    case = scene(lognormal(12, 24, seed=hosts), compute=table, sync=sync, **limits)
    np.testing.assert_allclose(play(case).ready, brute_force(case), rtol=1e-9)


def test_without_numba_one_line_says_what_to_install(monkeypatch):
    monkeypatch.setattr(scenes, "find_spec", lambda name: None)
    with pytest.raises(MissingError, match=r"need numba: pip install 'feedrate\[sim\]'"):
        play(scene([[1.0]]))
