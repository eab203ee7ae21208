"""Fitting: known parameters are found again, what cannot be known is said."""

from dataclasses import asdict, replace

import numpy as np
import pytest
from command import feedrate

from emulator.analysis.throughput import busy, durations, throughput
from emulator.config.workload import load_workload
from emulator.errors import SpecError
from emulator.plugins.systems.fit import fit
from emulator.plugins.systems.fit_quality import further_run, held_out, median_errors
from emulator.plugins.systems.fit_results import fit_results
from emulator.plugins.systems.predict import (
    Simulation,
    batch_bytes,
    forecast,
    on_paper,
    predict,
    rank_plan_of,
    sample_sizes,
)
from emulator.plugins.systems.seen import Seen, described, seen_in
from emulator.plugins.systems.simulate import simulate
from emulator.plugins.systems.sizing import utilization
from emulator.plugins.systems.system import (
    ClientSystem,
    Evidence,
    Fitted,
    StorageSystem,
    System,
    load_system,
    write_system,
)
from emulator.record.result import Bound, Starved, new_result

TINY = load_workload("unet3d-tiny", ["access.refill=never"])  # 80 MB/s a rank


def measured(system, counts, variation=0.0, seed=0):
    """Return the points of a sweep on `system`, with relative variation."""
    random = np.random.default_rng(seed)
    found = []
    for number, ranks in enumerate(counts):
        simulation = Simulation(
            workload=TINY, system=system, sizes=sample_sizes(TINY.sample, 400), samples=400, steps=30
        )
        predicted = predict(simulation, ranks, number)
        point, first = predicted.point, predicted.steps["wait"][predicted.steps["step"] == 0]
        factor = float(np.exp(variation * random.standard_normal()))
        size = batch_bytes(rank_plan_of(simulation, ranks, number), simulation.sizes)
        compute = np.full(size.shape, TINY.accelerator.step_seconds)
        found.append(
            Seen(
                ranks=ranks,
                hosts=len(point.hosts) or 1,
                rate=point.bytes_per_second * factor,
                efficiency=point.x_ideal * factor,
                size=size,
                compute=compute,
                gates=np.zeros(30, bool),
                first_wait=float(first.mean()),
            )
        )
    return found


def fitted(system, counts, **more):
    return fit(["OUT"], TINY, measured(system, counts, **more))


def test_a_bandwidth_is_found_again():
    found = fitted(System(storage=StorageSystem(bandwidth=400e6)), (1, 4, 9))
    assert found.system.fit.identified
    assert found.system.storage.bandwidth == pytest.approx(400e6, rel=1e-3)
    assert found.system.storage.latency == 0


@pytest.mark.long
def test_the_interval_holds_the_truth():
    """Variation of 1 %, one count beyond saturation, 12 times: a 95 % interval misses at most 2 of them.

    It is wide: a count at which nobody waits is no evidence of variation, so two of these three carry it.
    """
    inside = 0
    for seed in range(12):
        system = System(storage=StorageSystem(bandwidth=400e6))
        low, high = fitted(system, (2, 4, 8), variation=0.01, seed=seed).system.fit.interval["bandwidth"]
        inside += low <= 400e6 <= high
        assert high / low < 1.2
    assert inside >= 10


def test_below_saturation_there_is_only_a_lower_bound():
    found = fitted(System(storage=StorageSystem(bandwidth=400e6)), (1, 2, 4), variation=0.003)
    fit_ = found.system.fit
    assert not fit_.identified and "bandwidth" not in fit_.interval
    assert 300e6 < fit_.at_least <= 400e6
    assert found.system.storage.bandwidth is None, "a limit that nobody saw is not written as one"
    assert found.unlimited == "AU 100 % at 4 ranks: the storage was not at its limit"
    assert utilization(TINY, found.system, 8) < 0.6, "predictions use what is known to be there"


def test_a_limit_whose_interval_has_no_end_is_not_seen():
    """One count of four is a little off: that is variation as well as a limit."""
    *others, last = measured(System(storage=StorageSystem(bandwidth=10e9)), (1, 2, 3, 4))
    last = replace(last, rate=0.963 * last.rate, efficiency=0.963 * last.efficiency)
    assert not fit(["OUT"], TINY, [*others, last]).fitted.identified


def test_one_count_identifies_no_limit():
    """AU 90 % at one count is a limit, or what each step costs."""
    fit_ = fitted(System(storage=StorageSystem(bandwidth=400e6)), (6,)).system.fit
    assert not fit_.identified and fit_.at_least < 400e6


def test_a_cost_of_each_step_and_a_start_are_found_again():
    truth = System(storage=StorageSystem(bandwidth=400e6), clients=ClientSystem(step_cost=0.002, start=0.7))
    found = fitted(truth, (1, 3, 9)).system
    assert found.clients.step_cost == pytest.approx(0.002, rel=0.05) and found.storage.latency == 0
    assert found.storage.bandwidth == pytest.approx(400e6, rel=0.01)
    assert found.clients.start == pytest.approx(0.7, abs=0.02)
    low, high = found.fit.interval["step_cost"]
    assert low < 0.002 < high
    assert utilization(TINY, found, 1) == pytest.approx(50 / 52, abs=0.003), "never exactly 100 %"


def test_runs_that_no_model_describes_are_refused():
    seen = measured(System(storage=StorageSystem(bandwidth=400e6)), (1, 4, 6, 9))
    assert fit(["OUT"], TINY, seen).refusal == ""
    scattered = [
        replace(count, rate=count.rate * factor, efficiency=count.efficiency * factor)
        for count, factor in zip(seen, (0.5, 1, 0.43, 2.3), strict=True)
    ]
    assert "no model describes these runs" in fit(["OUT"], TINY, scattered).refusal
    drifting = [replace(scattered[0], drift=np.log(1.5)), *scattered[1:]]
    assert "throughput changed by +50 % within the run of 1 ranks" in fit(["OUT"], TINY, drifting).refusal


def test_drift_within_runs_widens_the_interval():
    seen = measured(System(storage=StorageSystem(bandwidth=400e6)), (1, 4, 9))
    calm, rough = (
        fit(["OUT"], TINY, [replace(count, drift=drift) for count in seen]).system.fit for drift in (0, 0.2)
    )
    assert rough.deviation == pytest.approx(0.1) and calm.deviation < 0.02
    width = [np.ptp(np.log(found.interval["bandwidth"])) for found in (calm, rough)]
    assert width[1] > 4 * width[0]


@pytest.mark.parametrize(("slow", "refused"), [(0.6, True), (0.99, False)])
def test_a_host_that_is_slower_than_another_is_refused(slow, refused):
    """Samples that each host's ranks got in the same time."""
    result, steps = simulated_on_hosts()
    point = result.points[0]
    ideal = point.samples / point.seconds
    share = point.hosts[0]
    busy = share.samples / (point.ideal_samples_per_second / point.ranks)
    hosts = (replace(share, wait_seconds=0.0), replace(share, host="b", wait_seconds=busy * (1 / slow - 1)))
    assert ideal > 0
    result = replace(result, points=(replace(point, hosts=hosts),))
    if refused:
        with pytest.raises(
            SpecError, match="b kept its accelerators busy 60 % of the time, and hosts with as many 100 %"
        ):
            seen_in(result, steps)
    else:
        assert len(seen_in(result, steps)) == 1


def simulated_on_hosts():
    """A result of four ranks on two hosts and its steps."""
    system = System(storage=StorageSystem(bandwidth=1e9), clients=ClientSystem(hosts=2))
    sizes = sample_sizes(TINY.sample, 400)
    found = predict(Simulation(workload=TINY, system=system, sizes=sizes, samples=len(sizes), steps=30), 4)
    result = new_result(
        "sweep", command=(), workload=asdict(TINY), dataset={"samples": 400}, storage={}, loader="direct",
        environment={}, points=(found.point,), knee=None, flags=(),
    )  # fmt: skip
    return result, lambda number: [found.steps[found.steps["point"] == number]]


def test_what_a_system_describes_is_kept_and_what_waited_for_a_core_is_not():
    """Few readers of a storage with a latency are called the loader's limit: a system has both."""
    point = replace(simulated_on_hosts()[0].points[0], x_ideal=0.6)
    whole = point.ranks * point.seconds
    late = replace(
        point,
        bound=Bound(kind="loader", evidence=()),
        starved=Starved(seconds=0.4 * whole, storage=0.9, cores=0.1),
    )
    busy = replace(late, starved=Starved(seconds=0.4 * whole, storage=0.2, work=0.8))
    crowded = replace(
        point, bound=Bound(kind="storage", evidence=()), starved=Starved(seconds=0.4 * whole, cores=0.2)
    )
    assert described([point, late, busy, crowded]) == [point, late]


A100_OF_7 = Evidence(ranks=7, hosts=1, rate=0.974 * 7 * 1.6e9, efficiency=0.974)


@pytest.mark.parametrize(
    ("seen", "asked", "low", "high"),
    [
        (A100_OF_7, (3.2e9, 2, 1), 0.949, 1.0),  # H100: twice the loss per byte, and less in all
        (A100_OF_7, (1.6e9, 7, 2), 0.974, 1.0),  # another host takes nothing away
        (replace(A100_OF_7, hosts=2), (1.6e9, 7, 1), 0.0, 0.974),  # a host alone may have a limit
        (A100_OF_7, (1.6e9, 14, 1), 0.487, 0.974),  # what 7 read is there for 14
        (A100_OF_7, (0.8e9, 28, 1), 0.2467, 1.0),  # slower accelerators may wait less
        (Evidence(ranks=16, hosts=1, rate=12.8e9, efficiency=0.5), (1.6e9, 12, 1), 0.5, 2 / 3),
    ],
)
def test_what_was_measured_bounds_what_may_be(seen, asked, low, high):
    found = Fitted(results=(), workload="w", seen=(seen,), identified=False).between(*asked)
    assert found == (pytest.approx(low, abs=1e-3), pytest.approx(high, abs=1e-3))


def test_a_forecast_is_within_what_was_measured():
    """One count has two explanations, a latency or a cost of steps, that differ for faster accelerators."""
    (seen,) = measured(System(clients=ClientSystem(step_cost=0.005)), (4,))
    found = fit(["OUT"], TINY, [seen]).system
    faster = replace(
        TINY, accelerator=replace(TINY.accelerator, step_seconds=TINY.accelerator.step_seconds / 2)
    )
    low, high = found.fit.between(faster.demand, 2, 1)
    guess = forecast(on_paper(faster, found, 2, steps=30), 2)
    error = np.exp(found.run_error)
    assert low / error - 1e-9 <= guess.interval[0] <= guess.point.x_ideal <= guess.interval[1]
    assert high == 1.0


def test_imported_points_are_fitted_too():
    result, _ = simulated_on_hosts()
    (point,) = result.points
    unknown = replace(point, x_ideal=np.nan)
    imported = replace(result, kind="imported", points=(replace(point, x_ideal=0.9), unknown))
    (seen,) = seen_in(imported, lambda _: [])
    assert (seen.ranks, seen.hosts, seen.efficiency) == (4, 2, 0.9)
    assert seen.rate == pytest.approx(0.9 * 4 * TINY.demand)
    with pytest.raises(SpecError, match="no point whose AU could be recomputed"):
        seen_in(replace(imported, points=(unknown,)), lambda _: [])


def test_each_count_is_predicted_from_the_others_beside_two_guesses():
    rows = held_out(TINY, measured(System(storage=StorageSystem(bandwidth=400e6)), (1, 2, 4, 5, 7, 9)))
    assert [row.ranks for row in rows] == [1, 2, 4, 5, 7, 9]
    assert all(row.interval[0] <= row.measured <= row.interval[1] for row in rows)
    twin, constant, cap = median_errors(rows)
    assert twin < cap < constant
    assert rows[0].constant == pytest.approx(np.mean([row.measured for row in rows[1:]]))
    assert rows[4].cap == pytest.approx(max(row.measured * row.ranks for row in rows if row.ranks != 7) / 7)


def test_a_simulation_that_is_no_better_than_a_guess_says_so(tmp_path):
    found = fitted(System(storage=StorageSystem(bandwidth=400e6)), (1, 4, 9))
    assert not found.with_errors((0.001, 0.1, 0.01)).fitted.no_better
    system = found.with_errors((0.02, 0.1, 0.01)).system
    assert system.fit.standing.endswith("no better than the bandwidth cap alone")
    result, _ = simulate(TINY, system, (3,), tmp_path / "out", steps=20)
    assert [(flag.name, flag.sentence) for flag in result.flags] == [("no-better", system.fit.standing)]


@pytest.mark.parametrize("uneven", [False, True])
def test_rows_in_any_order_give_what_the_formulas_give_of_all_together(uneven):
    """Rows come some at a time, and are held as sums of each rank."""
    result, steps = simulated_on_hosts()
    rows = np.concatenate([*steps(0)])
    rows["wait"] *= np.random.default_rng(1).uniform(0.2, 3, len(rows))
    rows["begin"] *= 1.5
    if uneven:  # one rank begins when another has ended
        rows["begin"][rows["rank"] == 3] += 2 * rows["begin"].max()
    shuffled = np.random.default_rng(2).permutation(rows)
    (seen,) = seen_in(result, lambda _: np.array_split(shuffled, 7))
    counted = busy(rows)
    consumed, point = throughput(counted), result.points[0]
    assert seen.rate == pytest.approx(consumed.bytes_per_second)
    assert seen.efficiency == pytest.approx(consumed.samples_per_second / point.ideal_samples_per_second)
    assert seen.first_wait == pytest.approx(rows["wait"][(rows["step"] == 0) & (rows["epoch"] == 0)].mean())
    in_order = np.sort(rows, order=("rank", "epoch", "step")).reshape(point.ranks, point.steps).T
    assert (seen.size == in_order["bytes"]).all() and (seen.compute == in_order["compute"]).all()
    if not uneven:
        ends = counted["begin"] + durations(counted)
        middle = (ends.min() + ends.max()) / 2
        halves = [throughput(part) for part in (counted[ends <= middle], counted[ends > middle])]
        drifts = [
            np.log(halves[1].samples_per_second / halves[0].samples_per_second),
            np.log(halves[1].bytes_per_second / halves[0].bytes_per_second),
        ]
        assert seen.drift == pytest.approx(min(drifts, key=abs))
    with pytest.raises(SpecError, match="no complete point"):
        seen_in(result, lambda _: [shuffled[1:]])


def test_the_next_run_is_one_that_tells_something():
    below = fitted(System(storage=StorageSystem(bandwidth=400e6)), (1, 2, 4))
    assert further_run(TINY, below).startswith("a run with 8 ranks or more")
    above = fitted(System(storage=StorageSystem(bandwidth=400e6)), (1, 4, 9))
    text = further_run(TINY, above)
    assert "would narrow bandwidth most" in text
    assert int(text.split()[3]) >= 5, "below the knee a bandwidth moves nothing"


def test_a_latency_is_told_from_a_bandwidth():
    # two readers with requests of 1 MB: 2 MB / 40 ms = 50 MB/s a rank instead of 80
    system = System(storage=StorageSystem(bandwidth=300e6, latency=0.04))
    found = fitted(system, (1, 3, 9))
    assert found.system.storage.latency == pytest.approx(0.04, rel=0.02)
    assert found.system.storage.bandwidth == pytest.approx(300e6, rel=0.02)
    low, high = found.system.fit.interval["latency"]
    assert low < 0.04 < high


def test_a_limit_that_grows_with_the_hosts_is_theirs():
    hosts = [measured(System(clients=ClientSystem(hosts=n, nic=200e6)), (6,))[0] for n in (1, 2)]
    found = fit(["OUT"], TINY, hosts).system
    assert found.storage.bandwidth is None
    assert found.clients.nic == pytest.approx(200e6, rel=0.01)
    assert found.fit.hosts == (1, 2)


def test_the_file_is_read_back(tmp_path):
    found = fitted(System(storage=StorageSystem(bandwidth=400e6)), (1, 4, 9), variation=0.01)
    write_system(tmp_path / "system.toml", found.system)
    system = load_system(str(tmp_path / "system.toml"))
    assert system.storage == found.system.storage and system.fit == found.system.fit
    assert system.sources["storage.bandwidth"] == "fitted to OUT"


@pytest.fixture(scope="module")
def simulated(tmp_path_factory):
    """A sweep on 400 MB/s, simulated: 1, 2 and 4 ranks are below saturation, 9 is not."""
    folder = tmp_path_factory.mktemp("fit")
    truth = System(storage=StorageSystem(bandwidth=400e6))
    simulate(TINY, truth, (1, 2, 4, 9), folder / "out", steps=30)
    return folder


def test_the_command_fits_and_simulate_says_what_was_not_seen(simulated):
    done = feedrate("fit", simulated / "out", "--out", simulated / "system.toml")
    assert done.status == 0, done.err
    assert "bandwidth: 400 MB/s, 95 % interval" in done.out
    assert "measured: counts 1, 2, 4, 9" in done.out
    assert "by the bandwidth cap alone to" in done.out
    system = load_system(str(simulated / "system.toml"))
    result, _ = simulate(TINY, system, (5, 40), simulated / "predicted", steps=20)
    assert [[flag.name for flag in point.flags] for point in result.points] == [[], ["extrapolated"]]


def test_what_is_wrong_is_said_in_one_line(simulated, tmp_path):
    assert "no result" in feedrate("fit", tmp_path, "--out", tmp_path / "s.toml").one_line()
    with pytest.raises(SpecError, match="77"):
        fit_results([simulated / "out"], (77,))
    assert not (tmp_path / "s.toml").exists()
    assert "exists already" in feedrate("fit", tmp_path, "--out", tmp_path).one_line()
