"""Every figure that the documents derive, recomputed from their own inputs; and those that do not follow."""

import json

import pytest
from command import feedrate
from hypothesis import given
from hypothesis import strategies as st
from synthetic_results import plain_sweep

from emulator.config.catalog import names
from emulator.errors import SpecError
from emulator.plugins.systems.efficiency import efficiency, figures, matches, scaled
from emulator.plugins.systems.system import StorageSystem, System, load_system
from emulator.record.out import ResultFolder

NVME, HDD = load_system("ceph-nvme"), load_system("ceph-hdd")
ADJUSTED = scaled(HDD, nodes=6, write_factor=1.27)


@pytest.mark.parametrize(
    ("system", "key", "derived", "digits"),
    [
        (NVME, "raw_tb", 1152, 1),
        (HDD, "raw_tb", 576, 1),
        (NVME, "read_mb_per_second_per_usable_tb", 69.13, 0.01),
        (NVME, "write_mb_per_second_per_usable_tb", 33.95, 0.01),
        (HDD, "read_mb_per_second_per_usable_tb", 15.91, 0.01),
        (HDD, "write_mb_per_second_per_usable_tb", 2.635, 1e-3),
        (ADJUSTED, "write_mb_per_second_per_usable_tb", 3.347, 1e-3),
        (ADJUSTED, "read_gb_per_second", 4.583, 2e-3),
        (ADJUSTED, "write_gb_per_second", 0.964, 1e-3),
        (ADJUSTED, "writing_watts", 522, 1),
        (ADJUSTED, "writing_watts_per_gb_per_second", 541.5, 0.2),
        (NVME, "writing_watts", 382, 1),
        (NVME, "drive_watts", 10.6, 0.1),
        (NVME, "drives_of_a_node_watts", 64, 1),
        (HDD, "drives_of_a_node_watts", 87, 1),
        (NVME, "watts_per_raw_tb", 0.3313, 1e-4),
        (HDD, "watts_per_raw_tb", 0.6042, 1e-4),
        (NVME, "watts_per_usable_tb", 0.502, 1e-3),
        (HDD, "watts_per_usable_tb", 1.8125, 1e-4),
        (NVME, "reading_watts_per_gb_per_second", 6.920, 1e-3),
        (HDD, "reading_watts_per_gb_per_second", 113.91, 0.01),
        (NVME, "writing_watts_per_gb_per_second", 14.791, 1e-3),
        (NVME, "read_latency_ms", 35, 1),
        (HDD, "write_latency_ms", 1760, 1),
    ],
)
def test_ceph_2023(system, key, derived, digits):
    assert figures(system)[key] == pytest.approx(derived, abs=digits / 2 * 1.001 + 1e-9)


def test_nodes_to_match_ceph_2023():
    """69 follows from its inputs; its 68 is rounded down."""
    assert matches(ADJUSTED, NVME) == {"usable_capacity": 16, "reads": 69, "writes": 161}
    assert matches(HDD, NVME)["writes"] == 204, "unadjusted"
    cost = [figures(system)["cost_per_raw_tb"] for system in (NVME, HDD)]
    assert cost[0] / cost[1] == pytest.approx(2.025, abs=1e-3)


@pytest.mark.parametrize(
    ("system", "raw", "read", "iops", "network"),
    [
        ("high-capacity", 1474.56, 76.0, 3526, 75),
        ("mainstream", 460.8, 225.7, 11068, 69),
        ("performance", 460.8, 492.6, 14323, 76),
    ],
)
def test_weka_2023(system, raw, read, iops, network):
    spec = load_system(f"weka-{system}")
    found = figures(spec)
    assert found["raw_tb"] == pytest.approx(raw)
    assert found["read_mb_per_second_per_raw_tb"] == pytest.approx(read, abs=0.0501)
    assert found["read_iops_per_raw_tb"] == pytest.approx(iops, abs=0.51)
    line = spec.storage.nodes * spec.storage.node_bandwidth
    assert 100 * spec.storage.bandwidth / line == pytest.approx(network, abs=0.7)


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.integers(1, 10_000))
def test_matching_nodes_are_enough_and_no_more(target, have, nodes):
    other = System(storage=StorageSystem(bandwidth=target))
    found = matches(System(storage=StorageSystem(bandwidth=have, nodes=nodes)), other)["reads"]
    assert found * have / nodes >= target * (1 - 1e-6)
    assert (found - 1) * have / nodes < target * (1 + 1e-6)


def test_what_the_file_does_not_hold_is_none():
    empty = System()
    assert all(value is None for value in figures(empty).values()) and not matches(empty, NVME)


def test_every_system_that_ships_answers():
    found = efficiency(names("results/systems"), "unet3d-a100").systems
    assert all(figures_of_system["read_gb_per_second"] for figures_of_system in found.values())


def test_the_command_shows_systems_beside_each_other():
    words = ["-s", "ceph-nvme", "-s", "ceph-hdd", "--match", "ceph-nvme", "-w", "unet3d-a100"]
    done = feedrate("efficiency", *words)
    assert done.status == 0, done.err
    assert "6.920" in done.out and "113.9" in done.out
    assert [line.split()[-1] for line in done.out.splitlines() if line.startswith("reads")] == ["69"]


def test_a_sweep_of_ones_own_with_what_it_does_not_tell(tmp_path):
    out = tmp_path / "sweep"
    ResultFolder.create(out, plain_sweep(), force=False).complete()
    words = ("efficiency", out, "--nodes", 6, "--drives", 8, "--set", "hardware.drive_capacity=7.68TB")
    found = json.loads(feedrate(*words, "--json").out)["systems"]["sweep"]
    most = max(point.bytes_per_second for point in plain_sweep().points)
    assert found["raw_tb"] == pytest.approx(6 * 8 * 7.68) and found["accelerators"] > 10
    assert found["read_gb_per_second_per_node"] == pytest.approx(most / 6e9)
    beside = json.loads(feedrate(*words, "-s", "ceph-hdd", "--json").out)["systems"]
    assert (beside["sweep"], beside["ceph-hdd"]["raw_tb"]) == (found, 576)
    (out / "system.toml").write_text("[storage]\nnodes = 3\n[hardware]\nnode_cost = 2.0\n")
    beside = efficiency([str(out)]).systems["sweep"]
    assert beside["cost"] == 6 and beside["read_gb_per_second_per_node"] == pytest.approx(most / 3e9)
    with pytest.raises(SpecError, match="does not state its nodes"):
        scaled(System(name="x"), nodes=6)


def test_systems_of_the_same_name_have_a_column_each(tmp_path):
    files = [tmp_path / name / "storage.toml" for name in "ab"]
    for rate, file in enumerate(files, 1):
        file.parent.mkdir()
        file.write_text(f'[storage]\nbandwidth = "{rate}MB/s"')
    found = efficiency([str(file) for file in files], "unet3d-a100").systems
    assert [system["read_gb_per_second"] for system in found.values()] == [0.001, 0.002]
    assert [system["accelerators"] for system in found.values()] == [0, 0]
