"""Points predicted from a workload and a system: the emulator's plan, the emulator's formulas."""

from dataclasses import asdict, replace

import numpy as np
import pytest

from emulator.analysis.point import point_of
from emulator.config.workload import load_workload
from emulator.errors import DatasetError
from emulator.order import EpochPlan, RankPlan
from emulator.plugins.systems import predict as predicting
from emulator.plugins.systems.predict import (
    Simulation,
    batch_bytes,
    on_paper,
    predict,
    rank_plan_of,
    sample_sizes,
)
from emulator.plugins.systems.system import ClientSystem, StorageSystem, System
from emulator.run.accelerator import step_times

A100 = load_workload("unet3d-a100", ["training.sync=none"])
NEXT_ONLY = load_workload("unet3d-a100", ["training.sync=none", "loader.prefetch=1"])
DEMAND = A100.ideal_samples_per_second * A100.sample.bytes_mean


def simulation(system, workload=A100, files=2000, **more):
    more = {"steps": 30, **more}
    sizes = sample_sizes(workload.sample, files)
    return Simulation(workload=workload, system=system, sizes=sizes, samples=files, **more)


def on(bandwidth, **clients):
    return System(storage=StorageSystem(bandwidth=bandwidth), clients=ClientSystem(**clients))


def test_the_batches_are_the_plans():
    course = RankPlan(plan=EpochPlan(samples=50, ranks=3, batch_size=4), seed=5, steps=9)
    sizes = np.arange(50.0) ** 2
    size = batch_bytes(course, sizes)
    for rank in range(3):
        expected = [sizes[[read.file for read in step.reads]].sum() for step in course.portions(rank)]
        np.testing.assert_array_equal(size[:, rank], expected)


@pytest.mark.parametrize("sync", ["none", "step", "epoch"])
def test_a_point_is_what_the_emulators_summary_makes_of_its_steps(sync):
    workload = load_workload("unet3d-a100", [f"training.sync={sync}"])
    found = predict(simulation(on(12 * DEMAND, hosts=3, nic=5 * DEMAND), workload), 14, number=2)
    expected = point_of(workload, 2000, 14, found.steps, hosts=found.point.hosts)
    for name, value in asdict(expected).items():
        got = getattr(found.point, name)
        assert got == (pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value) or (
            name in ("hosts", "course", "step")
        ), name
    assert sum(host.bytes for host in found.point.hosts) == pytest.approx(found.point.bytes, abs=5)
    rows = found.steps[found.steps["rank"] == 3]
    spent = rows["wait"] + rows["compute"] + rows["overshoot"] + rows["barrier"]
    np.testing.assert_allclose(rows["begin"][1:], (rows["begin"] + spent)[:-1])


def test_step_times_are_drawn_as_emulated_ranks_draw_them():
    times = (0.4, 0.6, 0.9)
    spec = replace(A100.accelerator, compute="empirical", quantiles=times, step_seconds=sum(times) / 3)
    found = predict(simulation(on(1e12), replace(A100, accelerator=spec)), 3, number=4)
    for rank in range(3):
        rows = found.steps[found.steps["rank"] == rank]
        np.testing.assert_allclose(rows["compute"], step_times(spec, 4, rank, 0, 30))
    assert found.point.au == pytest.approx(1, abs=0.001)


def test_too_few_samples_are_refused():
    with pytest.raises(DatasetError, match="too few"):
        predict(simulation(on(1e9), files=20), 4)


@pytest.mark.parametrize(
    ("system", "limit"),
    [
        (System(clients=ClientSystem(hosts=2, nic=4 * DEMAND)), 8 * DEMAND),
        (System(clients=ClientSystem(hosts=2, cores=8, cpu_seconds_per_gb=2e9 / DEMAND)), 8 * DEMAND),
        (System(storage=StorageSystem(nodes=6, node_bandwidth=DEMAND, protection="4+2")), 6 * DEMAND),
        (
            System(
                storage=StorageSystem(bandwidth=16 * DEMAND, read_efficiency=((2**20, 0.25), (2**24, 0.75)))
            ),
            8 * DEMAND,
        ),
    ],
    ids=["NIC", "CPU", "nodes", "read size"],
)
def test_throughput_saturates_at_what_the_system_file_says(system, limit):
    """14 accelerators: a knee of the clients' NICs or processors, of the nodes, of the size of reads."""
    found = predict(simulation(system, NEXT_ONLY, steps=40), 14).point
    assert found.bytes_per_second == pytest.approx(limit, rel=0.01)
    below = predict(simulation(system, steps=40), 4).point
    assert below.au == pytest.approx(1, abs=0.005)


@pytest.mark.parametrize(("ranks", "share"), [(14, 2**-0.5), (28, 1.25**-0.5)])
def test_a_soft_limit_is_reached_gradually(ranks, share):
    """Ranks that ask for D together get (D^-p + limit^-p)^(-1/p), here with p = 2 and a limit of 14 ranks."""
    system = System(storage=StorageSystem(bandwidth=14 * DEMAND, softness=2.0))
    found = predict(simulation(system, NEXT_ONLY, files=20_000, steps=40), ranks).point
    assert found.bytes_per_second == pytest.approx(share * 14 * DEMAND, rel=0.01)


def test_a_stripe_is_read_from_its_data_nodes():
    """Nodes at 0.4 of a demand: one rank gets 2 x 0.4 with stripes of 2+1, all it asks for with 4+2."""
    for protection, au in (("2+1", 0.8), ("4+2", 1.0)):
        storage = StorageSystem(nodes=6, node_bandwidth=0.4 * DEMAND, protection=protection)
        found = predict(simulation(System(storage=storage), NEXT_ONLY, steps=100), 1).point
        assert found.au == pytest.approx(au, abs=0.01)


def test_files_that_nobody_specified_last_for_all_steps(monkeypatch):
    """Else a large system would be asked to begin an epoch every few steps, and feed fewer."""
    monkeypatch.setattr(predicting, "DRAWN_SIZES", 1000)
    paper = on_paper(A100, on(1e12), 50_000, steps=100)
    course = rank_plan_of(paper, 50_000, 0)
    assert course.plan.steps == course.length == 100
    few = on_paper(A100, on(1e12), 100, files=1400, steps=4)
    size = batch_bytes(rank_plan_of(few, 100, 0), few.sizes)
    assert len(few.sizes) == 1000 and size.sum(axis=1).mean() == pytest.approx(
        700 * few.sizes.mean(), rel=0.1
    )
