"""Every figure that the documents derive, recomputed from their own inputs; and those that do not follow."""

import math
from pathlib import Path

import pytest
from command import feedrate
from hypothesis import given
from hypothesis import strategies as st

from emulator.plugins.systems.efficiency import (
    GB,
    TB,
    cost,
    efficiency,
    for_protection,
    matches,
    nodes_to_match,
    ratio,
    raw_bytes,
    usable_bytes,
    watts,
)
from emulator.plugins.systems.system import System, load_system, parse_protection

ROOT = Path(__file__).parents[2]
NVME, HDD = load_system("ceph-nvme"), load_system("ceph-hdd")
WEKA = {name: load_system(f"weka-{name}") for name in ("high-capacity", "mainstream", "performance")}


def for_nodes(rate, nodes, wanted):
    """What the same nodes would deliver if there were `wanted` of them."""
    return rate * wanted / nodes


def queue_latency(jobs, depth, iops):
    """Little's law: the mean seconds of a request when every queue stays full."""
    return jobs * depth / iops


def queue_iops(jobs, depth, latency):
    return jobs * depth / latency


def figures(system, fed=None):
    return {figure.name: figure.value for figure in efficiency(system, fed)}


# Ceph on NVMe and on disks, 2023: six nodes against four.

READ = for_nodes(HDD.storage.bandwidth, 4, 6)
WRITE = for_nodes(HDD.storage.write_bandwidth, 4, 6) * 1.27  # the document's factor for the protection
DISK_WATTS = 522.0  # six nodes


@pytest.mark.parametrize(
    ("found", "derived", "digits"),
    [
        (READ / 1e6, 4583, 1),
        (WRITE / 1e6, 964, 1),
        (NVME.storage.bandwidth / READ, 11.465, 1e-3),
        (NVME.storage.write_bandwidth / WRITE, 26.765, 1e-3),
        (NVME.storage.bandwidth / HDD.storage.bandwidth, 17.2, 0.1),
        (NVME.storage.write_bandwidth / HDD.storage.write_bandwidth, 51.0, 0.1),
        (HDD.storage.latency / NVME.storage.latency, 8.286, 1e-3),
        (HDD.storage.write_latency / NVME.storage.write_latency, 36.667, 1e-3),
        (raw_bytes(NVME) / TB, 1152, 1),
        (raw_bytes(HDD) / TB, 576, 1),
        (raw_bytes(NVME) / 1.5 / TB, 768, 1),
        (figures(NVME)["read per usable TB"] * 1e3, 69.13, 0.01),
        (figures(NVME)["write per usable TB"] * 1e3, 33.95, 0.01),
        (figures(HDD)["read per usable TB"] * 1e3, 15.91, 0.01),
        (figures(HDD)["write per usable TB"] * 1e3, 2.635, 1e-3),
        (figures(HDD)["write per usable TB"] * 1e3 * 1.27, 3.347, 1e-3),
        (figures(NVME)["read per usable TB"] / figures(HDD)["read per usable TB"], 4.345, 1e-3),
        (figures(NVME)["write per usable TB"] / figures(HDD)["write per usable TB"] / 1.27, 10.14, 0.01),
        (figures(NVME)["write per usable TB"] / figures(HDD)["write per usable TB"], 12.88, 0.01),
        (watts(NVME, reading=False), 382, 1),
        (watts(NVME, reading=False) / 6, 64, 1),
        (watts(HDD, reading=True) / 4, 87, 1),
        (for_nodes(watts(HDD, reading=True), 4, 6), DISK_WATTS, 1),
        (figures(NVME)["power per raw TB"], 0.3313, 1e-4),
        (figures(HDD)["power per raw TB"], 0.6042, 1e-4),
        (figures(NVME)["power per usable TB"], 0.502, 1e-3),
        (figures(HDD)["power per usable TB"], 1.8125, 1e-4),
        (figures(NVME)["power per read"], 6.920, 1e-3),
        (figures(HDD)["power per read"], 113.91, 0.01),
        (DISK_WATTS / (READ / GB) / figures(NVME)["power per read"], 16.46, 0.01),
        (figures(NVME)["power per write"], 14.791, 1e-3),
        (DISK_WATTS / 0.964, 541.49, 0.01),
        (DISK_WATTS / 0.964 / figures(NVME)["power per write"], 36.6, 0.1),
        (nodes_to_match(760, 48 * 4, 4), 16, 1),
        (nodes_to_match(52_540, 4583, 6), 69, 1),
        (nodes_to_match(25_800, 964, 6), 161, 1),
        (6 * 52_540 / 4583, 68.79, 0.02),
        (6 * 25_800 / 964, 160.59, 0.02),
        (52_540 / 6, 8756.7, 0.1),
        (25_800 / 6, 4300, 1),
        (READ / 6 / 1e6, 763.75, 0.01),
        (964 / 6, 160.66, 0.02),
        (52_540 / 36 / 1e3, 1.46, 0.01),
        (25_800 * 1.5 / 36 / 1e3, 1.08, 0.01),
        (figures(NVME)["cost per raw TB"] / figures(HDD)["cost per raw TB"], 2.025, 1e-3),
        ((2.7 / 127) / (1 / 48), 1.020, 1e-3),
    ],
)
def test_ceph_2023(found, derived, digits):
    assert found == pytest.approx(derived, abs=digits / 2 * 1.001 + 1e-9)


def test_matching_follows_from_the_system_files():
    found = matches(HDD, NVME)
    assert found["usable capacity"] == 16
    assert found["reads"] == 69


@pytest.mark.parametrize(
    ("system", "raw", "usable", "read", "iops", "network"),
    [
        ("high-capacity", 1474.56, 983.04, 0.0760, 3526, 75),
        ("mainstream", 460.8, 307.2, 0.2257, 11068, 69),
        ("performance", 460.8, 307.2, 0.4926, 14323, 76),
    ],
)
def test_weka_2023(system, raw, usable, read, iops, network):
    spec = WEKA[system]
    assert raw_bytes(spec) / TB == pytest.approx(raw)
    assert raw_bytes(spec) / TB * 4 / 6 == pytest.approx(usable)
    assert figures(spec)["read per raw TB"] == pytest.approx(read, abs=5.01e-5)
    assert figures(spec)["read IOPS per raw TB"] == pytest.approx(iops, abs=0.51)
    line = spec.storage.nodes * spec.storage.node_bandwidth
    assert 100 * spec.storage.bandwidth / line == pytest.approx(network, abs=0.7)


def test_weka_2020_by_littles_law():
    assert queue_latency(72, 32, 4.6e6) == pytest.approx(500.9e-6, abs=0.05e-6)
    assert queue_latency(72, 16, 696e3) == pytest.approx(1.655e-3, abs=0.5e-6)
    assert queue_iops(72, 8, 830e-6) == pytest.approx(694e3, abs=500)
    assert queue_latency(72, 16, 62e9 / 131_072) == pytest.approx(2.435e-3, abs=0.5e-6)
    mean = 0.7 * 467e-6 + 0.3 * 3.6e-3
    assert queue_iops(72, 16, mean) == pytest.approx(0.82e6, abs=5e3)


def test_ai_2023_the_45_gigabytes_per_second():
    most = 128.1e6  # the largest demand of one process that its configuration allows
    assert pytest.approx(127.5e6, abs=0.05e6) == 4 * 146_313_216 / 4.59
    for share, printed in ((45 / 142, 0.317), (45 / 12, 3.75), (45 / 12 / 25, 0.15), (288 / 8, 36)):
        assert share == pytest.approx(printed, abs=5e-4)
    for rate, printed in ((45e9 / 288, 156e6), (288 * most, 36.9e9)):
        assert rate == pytest.approx(printed, rel=2e-3)
    assert nodes_to_match(45e9, most, 1) == 352
    assert math.floor(45e9 / most) == 351
    assert 45e9 / 0.9 / most < 391 < 45e9 / 0.9 / 127.5e6
    soft = (1 + (288 / 352) ** 8.5) ** (-1 / 8.5)
    assert soft == pytest.approx(0.98, abs=1e-3)


@pytest.mark.parametrize(
    ("printed", "recomputed", "digits"),
    [
        pytest.param(46, DISK_WATTS / 0.964 / 14.791, 0.5, id="ceph: W per GB/s written, 46 x"),
        pytest.param(10, 25_800 / 760 / (506 / 192), 0.5, id="ceph: writes per TB, 10 x no 1.27"),
        pytest.param(13, 25_800 / 760 / (506 * 1.27 / 192), 0.5, id="ceph: writes per TB, 13 x with 1.27"),
        pytest.param(68, nodes_to_match(52_540, 4583, 6), 0.5, id="ceph: nodes to match reads, 68"),
        pytest.param(1.27, 3.0 / 1.5, 0.01, id="ceph: factor of 3 copies to 4+2"),
        pytest.param(30.72, 1152 / 36, 0.01, id="ceph: TB of a drive"),
        pytest.param(0.548, 348 / 576, 5e-4, id="ceph: W per raw TB of the disks"),
        pytest.param(760, 1152 * 4 / 6, 0.5, id="ceph: usable TB"),
        pytest.param(0.1, 112 / 1474.56, 0.005, id="weka 2023: GB/s per raw TB, high capacity"),
        pytest.param(973, 1474.56 * 4 / 6, 0.5, id="weka 2023: usable TB, high capacity"),
        pytest.param(304, 460.8 * 4 / 6, 0.5, id="weka 2023: usable TB, the others"),
        pytest.param(1.6e6, 72 * 16 / (0.7 * 467e-6 + 0.3 * 3.6e-3), 5e4, id="weka 2020: 70/30 IOPS"),
        pytest.param(487e-6, 72 * 32 / 4.6e6, 5e-6, id="weka 2020: latency of reads at depth 32"),
        pytest.param(288, math.ceil(45e9 / 128.1e6), 0.5, id="ai 2023: processes that ask for 45 GB/s"),
    ],
)
def test_what_does_not_follow_from_the_documents_inputs(printed, recomputed, digits):
    assert abs(printed - recomputed) > digits


def test_the_printed_46_uses_the_unadjusted_writes():
    assert figures(HDD)["power per write"] / figures(NVME)["power per write"] == pytest.approx(46, abs=0.51)


def test_protection_scales_writes_by_the_bytes_that_drives_take():
    three, coded = parse_protection("3x"), parse_protection("4+2")
    assert for_protection(506, three, coded) == pytest.approx(1012)
    assert for_protection(for_protection(506, three, coded), coded, three) == pytest.approx(506)


@given(st.floats(1, 1e12), st.floats(1, 1e12), st.integers(1, 10_000))
def test_matching_nodes_are_enough_and_no_more(target, have, nodes):
    found = nodes_to_match(target, have, nodes)
    assert found * have / nodes >= target * (1 - 1e-6)
    assert (found - 1) * have / nodes < target * (1 + 1e-6)


def test_what_the_file_does_not_hold_is_none():
    empty = System()
    assert (raw_bytes(empty), usable_bytes(empty), cost(empty), watts(empty, reading=True)) == (None,) * 4
    assert all(figure.value is None for figure in efficiency(empty))
    assert not matches(empty, NVME) and ratio(1.0, 0.0) is None


@pytest.mark.parametrize("path", sorted((ROOT / "results" / "systems").glob("*.toml")), ids=lambda p: p.stem)
def test_every_system_that_ships_answers_and_says_what_it_lacks(path):
    done = feedrate("efficiency", "-s", path.stem)
    assert done.status == 0, done.err
    assert any(line.startswith("read, GB/s") for line in done.out.splitlines())
    text = " ".join(done.out.split())
    if path.stem == "ai-2023-weka-6-nodes":
        for key in ("hardware.drive_capacity", "hardware.drive_power_read", "hardware.node_cost"):
            assert key in text
    if path.stem == "ceph-nvme":
        assert "storage.read_iops" in text and "hardware.node_cost" not in text


def test_accelerators_per_terabyte_kilowatt_and_money():
    found = figures(NVME, fed=320)
    assert found["accelerators per usable TB"] == pytest.approx(320 / 760)
    assert found["accelerators per kW"] == pytest.approx(320 / 0.3636)
    assert found["accelerators per cost"] == pytest.approx(320 / 16.2)


@pytest.mark.long
def test_the_command_shows_systems_beside_each_other():
    done = feedrate(
        "efficiency", "-s", "ceph-nvme", "-s", "ceph-hdd", "--match", "ceph-nvme", "-w", "unet3d-a100"
    )
    assert done.status == 0, done.err
    assert "6.920" in done.out and "113.9" in done.out
    assert [line.split()[-1] for line in done.out.splitlines() if line.startswith("reads")] == ["69"]
    wrong = feedrate("efficiency", "-s", "nope")
    assert wrong.status == 2 and "weka-performance" in wrong.one_line()
