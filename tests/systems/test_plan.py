"""`feedrate plan`: how many are fed, what is needed, and by what it is bound."""

import math

import pytest
from command import feedrate

from emulator.config.workload import load_workload
from emulator.errors import SpecError
from emulator.plugins.systems import cli
from emulator.plugins.systems.plan import plan
from emulator.plugins.systems.predict import on_paper, predict
from emulator.plugins.systems.simulate import simulate
from emulator.plugins.systems.sizing import feeds, needs, utilization
from emulator.plugins.systems.system import ClientSystem, Evidence, Fitted, StorageSystem, System, load_system

TINY = load_workload("unet3d-tiny")
A100 = load_workload("unet3d-a100", ["training.sync=none"])


def test_the_count_is_where_utilization_crosses_the_threshold():
    system = System(storage=StorageSystem(bandwidth=45e9))
    found = feeds(A100, system)
    assert found.bound.name == "storage bandwidth"
    assert found.accelerators == pytest.approx(45e9 / A100.demand / 0.9, abs=1)
    assert utilization(A100, system, found.accelerators) >= 0.9
    assert utilization(A100, system, found.accelerators + 1) < 0.9


def test_plan_simulate_and_efficiency_give_one_number_and_one_interval(tmp_path, capsys):
    """Whatever the counts: the knee belongs to the system and the workload, not to a grid."""
    path = tmp_path / "s.toml"
    path.write_text('[storage]\nbandwidth = "1GB/s"\nnodes = 2\n')
    system = load_system(str(path))
    knees = []
    for number, counts in enumerate(((1,), (1, 2, 4, 8, 16), (10, 13, 14, 15))):
        result, _ = simulate(TINY, system, counts, tmp_path / str(number), steps=25)
        knees.append(result.knee)
    assert knees[0] == knees[1] == knees[2]
    knee = knees[0]
    low, high = knee.interval
    assert low < knee.n_au < high and knee.n_saturation == pytest.approx(1e9 / 80e6)
    assert "saturates" not in knee.sentence and "storage bandwidth, 1 GB/s" in knee.sentence
    cli.plan(system=str(path), workload=["unet3d-tiny"])
    planned = capsys.readouterr().out
    row = next(line for line in planned.splitlines() if line.startswith("unet3d-tiny")).split()
    assert int(row[3]) == math.floor(knee.n_au)
    assert row[5:8] == [f"{low:,.3g}", "to", f"{high:,.3g}"]
    cli.efficiency([str(path)], workload="unet3d-tiny")
    shown = capsys.readouterr().out.splitlines()
    fed, interval = (
        next(line for line in shown if line.startswith(name))
        for name in ("accelerators fed", "95 % interval")
    )
    assert fed.split()[-1] == row[3] and interval.split()[-3:] == row[5:8]


def test_what_no_limit_was_seen_for_feeds_at_least():
    seen = Evidence(ranks=4, hosts=1, rate=50e9, efficiency=1.0)
    fit = Fitted(results=(), workload="w", seen=(seen,), identified=False)
    found = feeds(A100, System(fit=fit))
    assert found.accelerators >= 30 and math.isinf(found.interval[1])
    assert found.knee.sentence.startswith(f"This system feeds at least {found.accelerators} accelerators")


@pytest.mark.parametrize(
    ("system", "name", "accelerators"),
    [
        (System(clients=ClientSystem(hosts=4, nic=5e9)), "client NIC", 12),  # 3.4 a host at AU 90 %
        (System(storage=StorageSystem(nodes=6, node_bandwidth=3e9)), "storage nodes", 12),
        (System(storage=StorageSystem(latency=0.05)), "latency x readers of a rank", 0),
        (System(clients=ClientSystem(hosts=1, cores=24, cpu_seconds_per_gb=2.0)), "client CPU", 8),
    ],
)
def test_what_binds_is_named(system, name, accelerators):
    found = feeds(A100, system)
    assert found.bound.name == name
    assert found.accelerators == pytest.approx(accelerators, abs=1)


def test_run_to_run_variation_decides_where_latency_alone_keeps_an_accelerator_at_the_threshold():
    """ "0 to 0" was said of systems where the next run may well have fed twenty."""

    def with_latency(seconds: float) -> System:
        return System(storage=StorageSystem(bandwidth=45e9, latency=seconds))

    fed, starved = 0.001, 0.05
    while starved - fed > 1e-6:
        middle = (fed + starved) / 2
        enough = utilization(A100, with_latency(middle), 1) >= 0.9
        fed, starved = (middle, starved) if enough else (fed, middle)
    just, almost = feeds(A100, with_latency(fed)), feeds(A100, with_latency(starved))
    assert just.accelerators > 20 and just.interval[0] == 0
    assert almost.accelerators == 0 and almost.interval[1] > 20
    assert "by less than run-to-run variation: it may be up to" in almost.knee.sentence
    clearly = feeds(A100, with_latency(2 * starved))
    assert clearly.interval == (0, 0) and "variation" not in clearly.knee.sentence


def test_what_is_needed_is_enough_and_no_more():
    found = needs(A100, 16, 4, cpu_seconds_per_gb=0.5)
    assert found.hosts == 4
    assert found.bandwidth == pytest.approx(0.9 * 16 * A100.demand, rel=0.03)
    assert found.cores == pytest.approx(4 * A100.demand / 1e9 * 0.5)
    system = System(
        storage=StorageSystem(bandwidth=found.bandwidth / 0.9), clients=ClientSystem(hosts=4, nic=found.nic)
    )
    assert utilization(A100, system, 16) == pytest.approx(0.9, abs=0.005)
    assert any("; 100 Gb/s with" in line for line in plan([A100], None, 16, per_host=4).lines), "52 Gb/s"


def test_the_command_says_how_many():
    done = feedrate("plan", "-s", "ai-2023-weka-6-nodes", "-w", "unet3d-a100", "--set", "training.sync=none")
    assert done.status == 0, done.err
    row = next(line for line in done.out.splitlines() if line.startswith("unet3d-a100"))
    assert row.split()[3:5] == ["31", "27"] and "storage bandwidth, 45 GB/s" in row


def test_what_is_wrong_is_said_in_one_line():
    assert "takes no argument s.toml: see feedrate plan -h" in feedrate("plan", "s.toml").one_line()
    with pytest.raises(SpecError, match="needs a question"):
        plan([A100])
    with pytest.raises(SpecError, match="too many to simulate: 100,000 at most"):
        plan([A100], None, 10**9)


def test_over_a_dataset_knee_and_points_are_of_the_same_run():
    """96 samples are 4 steps of 6 ranks: readers wait at the borders of 25 epochs."""
    system = System(storage=StorageSystem(bandwidth=400e6))
    run = on_paper(TINY, system, 8, files=96, steps=100)
    found = feeds(TINY, system, over=run)
    just, over = (predict(run, count).point.x_ideal for count in (found.accelerators, found.accelerators + 1))
    assert just >= 0.9 > over
    assert found.knee.n_au < feeds(TINY, system).knee.n_au - 0.1
    assert "ends of epochs included" in found.knee.sentence
    few = feeds(TINY, System(storage=StorageSystem(bandwidth=400e9)), over=run)
    assert (few.accelerators, few.knee.kind) == (24, "beyond")
    assert "24 accelerators or more" in few.knee.sentence
