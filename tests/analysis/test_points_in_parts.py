"""Figures that ranks compute together, each from its own rows, are those of all rows in one place."""

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from logs import drawn, emulated

from emulator.analysis.parts import Whole
from emulator.analysis.point import point_of
from emulator.analysis.starved import CAUSES, RankAccount, starved
from emulator.analysis.throughput import busy, rate_series
from emulator.config.workload import load_workload
from emulator.record.schedstat import Stretch


class Part(Whole):
    """One of some parts, each in a thread: what MPI's reductions do, without MPI."""

    def __init__(self, number, gate, held):
        self.number, self.gate, self.held = number, gate, held

    def all(self, values):
        return np.concatenate(self._of_all(values))

    def sum(self, values):
        return np.sum(self._of_all(values), axis=0)

    def max(self, values):
        return np.max(self._of_all(values), axis=0)

    def _of_all(self, values):
        self.held[self.number] = np.array(values)
        self.gate.wait(timeout=30)
        found = list(self.held)
        self.gate.wait(timeout=30)
        return found


def in_parts(rows, cuts, make):
    """Return what `make(rows, over)` gives in each part; `cuts` are the ranks at which parts begin."""
    edges = [0, *cuts, rows["rank"].max() + 1]
    groups = [rows[(rows["rank"] >= a) & (rows["rank"] < b)] for a, b in pairwise(edges)]
    gate, held = threading.Barrier(len(groups)), [None] * len(groups)
    with ThreadPoolExecutor(len(groups)) as pool:
        made = [pool.submit(make, group, Part(number, gate, held)) for number, group in enumerate(groups)]
        return [future.result() for future in made]


def point_log(seed, ranks, steps, epoch, sync):
    """Steps of ranks that wait, oversleep and meet, with all their moments."""
    costs = drawn(seed, steps, ranks, gap=0.04, hand=0.005, sleep=0.01, wake=0.01)
    rows = emulated(costs, sync, epoch, ask=bool(seed % 2))
    rows["bytes"] = np.random.default_rng(seed).integers(1, 10**6, len(rows))
    return rows


def close(one, other):
    """True when plain values agree, however nested, but for the order in which numbers were added."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(close(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return len(one) == len(other) and all(map(close, one, other))
    if hasattr(one, "__dataclass_fields__"):
        return all(close(getattr(one, field.name), getattr(other, field.name)) for field in fields(one))
    if isinstance(one, str | None):
        return one == other
    return one == pytest.approx(other, rel=1e-9, abs=1e-9, nan_ok=True)


@settings(max_examples=25)
@given(
    st.integers(0, 2**32), st.integers(2, 6), st.integers(1, 40), st.integers(1, 12),
    st.sampled_from(["step", "epoch", "none"]), st.data(),
)  # fmt: skip
def test_a_point_in_parts_is_the_point_of_all_rows(seed, ranks, steps, epoch, sync, data):
    cuts = sorted(data.draw(st.sets(st.integers(1, ranks - 1), min_size=1, max_size=3)))
    rows = point_log(seed, ranks, steps, epoch, sync)
    workload = load_workload("unet3d-tiny", [f"training.sync={sync}", "accelerator.step_seconds=0.05"])
    accounts = [
        RankAccount(
            host="ab"[rank % 2],
            reading=Stretch(*np.random.default_rng([seed, rank]).uniform(0, 1, 5)),
            process=Stretch(cores=0.1, work=0.1),
            readers=Stretch(),
        )
        for rank in range(ranks)
    ]

    def figures(part, *over):
        own = [accounts[rank] for rank in np.unique(part["rank"])]
        lost, hosts = starved(part, own, *over)
        rates = rate_series(busy(part, *over), 20, *over).rates
        return point_of(workload, 400, ranks, part, *over), lost, hosts, tuple(rates.tolist())

    whole = figures(rows)
    for found in in_parts(rows, cuts, figures):
        assert close(found, whole)
    assert sum(getattr(whole[1], cause) for cause in CAUSES) == pytest.approx(1.0) or not whole[1].seconds
