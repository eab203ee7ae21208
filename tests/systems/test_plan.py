"""`feedrate plan`: how many are fed, what is needed, and every shortfall, from a data sheet or a result."""

import json
import math
from dataclasses import replace

import pytest
from command import feedrate
from hypothesis import given
from hypothesis import strategies as st
from synthetic_results import plain_sweep, shaped_sweep

import emulator
from emulator.analysis.knee import asked_rate
from emulator.config.workload import load_workload
from emulator.errors import SpecError
from emulator.plugins.systems.limits import soft_count, soft_utilization
from emulator.plugins.systems.plan import plan
from emulator.record.out import ResultFolder, read_result
from emulator.record.result import Bound, Corner, Side, new_result


def sheet(tmp_path, text):
    path = tmp_path / "sheet.toml"
    path.write_text(text)
    return str(path)


def written(folder, result):
    ResultFolder.create(folder, result, force=False).complete()
    return str(folder)


def test_the_seed_case_to_the_digit():
    """45 GB/s for A100s of MLPerf Storage v0.4, by hand: results/seed-case-45GBps.md."""
    found = plan(["unet3d-a100-v04"], "ai-2023-weka-6-nodes", 288)
    (fed,) = found.feeds
    assert fed.demand_bytes_per_second / 1e6 == pytest.approx(127.506, abs=5e-4)
    assert fed.fully_fed == pytest.approx(352.9, abs=0.05)
    assert fed.knee == pytest.approx(392.1, abs=0.05) and fed.accelerators == 392
    assert fed.limit == "storage bandwidth" and fed.interval[0] < fed.knee < fed.interval[1]
    bandwidth = found.needs[0]
    assert bandwidth.full / 1e9 == pytest.approx(36.72, abs=0.005) and not bandwidth.shortfall


@pytest.mark.parametrize(
    ("workload", "knee", "low", "high"),
    [
        ("unet3d-a100", 31.0, 28.5, 31.6),
        ("resnet50-h100", 244.2, 225, 249),
        ("cosmoflow-h100", 79.5, 77.6, 81.1),
        ("cosmoflow-a100", 125.2, 122.1, 127.7),
    ],
)
def test_counts_at_45_gb_per_second(tmp_path, workload, knee, low, high):
    (fed,) = plan([workload], sheet(tmp_path, '[storage]\nbandwidth = "45GB/s"')).feeds
    assert fed.knee == pytest.approx(knee, rel=2e-3)
    assert fed.interval == (pytest.approx(low, rel=5e-3), pytest.approx(high, rel=5e-3))


@given(st.floats(0.1, 1e6), st.floats(0.3, 0.99))
def test_a_soft_limit_leaves_the_wanted_utilization_at_its_count(full, wanted):
    assert soft_utilization(full, soft_count(full, wanted)) == pytest.approx(wanted)
    assert soft_count(full, wanted) < full / wanted


@pytest.mark.parametrize(
    ("text", "limit"),
    [
        ('[storage]\nnodes = 6\nnode_bandwidth = "3GB/s"', "links of the storage nodes"),
        ('[storage]\nbandwidth = "45GB/s"\nread_iops = 100', "storage IOPS"),
        ('[storage]\nbandwidth = "45GB/s"\nlatency = "50ms"', "latency of 50 ms with 4 readers"),
        ('[storage]\nbandwidth = "45GB/s"\nlatency = "50ms"\ndepth = 400', "storage bandwidth"),
        ('[clients]\nhosts = 1\nnic = "1GB/s"', ""),
    ],
)
def test_the_limit_is_the_storages_and_named(tmp_path, text, limit):
    """Client hosts are not the storage, and a latency under load says nothing of a lone request."""
    (fed,) = plan(["unet3d-a100"], sheet(tmp_path, text)).feeds
    assert fed.limit.startswith(limit) and bool(fed.limit) == bool(limit)


def test_every_shortfall_is_said_and_the_storage_comes_first():
    found = plan(["unet3d-h100"], "weka-performance", 512)
    short = [need.resource for need in found.needs if need.shortfall]
    assert short == [
        "storage bandwidth", "links of the storage nodes", "client hosts", "link of a client host"
    ]  # fmt: skip
    assert "227 GB/s of the 1.73 TB/s" in found.needs[0].shortfall
    assert "not the storage" in next(need for need in found.needs if need.unit == "hosts").shortfall
    assert not any(need.shortfall for need in plan(["unet3d-h100"], "weka-performance", 48, per_host=4).needs)


def test_a_reserve_is_of_the_storage_and_not_of_whole_accelerators(tmp_path):
    done = feedrate("plan", "-s", sheet(tmp_path, '[storage]\nbandwidth = "2.22GB/s"'), "-w", "unet3d-a100")
    (row,) = (line for line in done.out.splitlines() if line.startswith("unet3d-a100"))
    assert "1 at 90%   1.41 to 1.56        1  storage bandwidth" in row


def test_what_is_needed_is_enough(tmp_path):
    (bandwidth, *_) = plan(["unet3d-a100"], None, 16, margin=0.0).needs
    text = f"[storage]\nbandwidth = {bandwidth.reserved}"
    low = plan(["unet3d-a100"], sheet(tmp_path, text)).feeds[0].interval[0]
    assert low == pytest.approx(16, rel=0.025), "but for run-to-run variation"
    text = f"[storage]\nbandwidth = {bandwidth.least}"
    assert plan(["unet3d-a100"], sheet(tmp_path, text)).feeds[0].knee == pytest.approx(16)


def test_a_sweep_answers_for_its_own_workload_and_by_bytes_for_others(tmp_path):
    sweep = plain_sweep()
    out = written(tmp_path / "sweep", sweep)
    own, other = plan(["unet3d-a100", "resnet50-h100"], out).feeds
    knee = emulator.find_knee(sweep.points)
    times = asked_rate(sweep.points) / load_workload("unet3d-a100").demand
    assert own.knee == pytest.approx(knee.n_au * times)
    assert own.interval == pytest.approx([end * times for end in knee.interval])
    each = load_workload("unet3d-a100").demand / load_workload("resnet50-h100").demand
    assert other.knee == pytest.approx(own.knee * each)
    assert other.interval == pytest.approx([end * each for end in own.interval])
    assert plan(["cosmoflow-a100"], out).feeds[0].au_threshold == 0.7


def test_where_opening_files_was_the_limit_samples_count(tmp_path):
    slow = Bound(kind="metadata", evidence=("opens take long",))
    sweep = plain_sweep()
    points = tuple(replace(point, bound=slow) if point.ranks > 14 else point for point in sweep.points)
    out = written(tmp_path / "sweep", replace(sweep, points=points))
    own, other = plan(["unet3d-a100", "cosmoflow-a100"], out).feeds
    rates = [load_workload(name).ideal_samples_per_second for name in ("unet3d-a100", "cosmoflow-a100")]
    at_70 = emulator.find_knee(points, threshold=0.7).n_au / emulator.find_knee(points).n_au
    assert other.knee == pytest.approx(own.knee * rates[0] / rates[1] * at_70)
    assert own.limit == "storage metadata"


def test_a_sweep_of_emulated_storage_is_marked(tmp_path):
    assert "emulated storage" in plan(["unet3d-a100"], written(tmp_path / "sweep", shaped_sweep())).title


def test_a_sweep_that_met_no_limit_feeds_at_least(tmp_path):
    sweep = plain_sweep()
    out = written(tmp_path / "sweep", replace(sweep, points=sweep.points[:5]))
    found = plan(["unet3d-a100"], out, 8)
    (fed,) = found.feeds
    assert fed.knee is None and math.isinf(fed.interval[1]) and "or more" in fed.sentence
    assert fed.accelerators >= 11 and not any(need.shortfall for need in found.needs)
    (bandwidth, *_) = plan(["unet3d-a100"], out, 10**6).needs
    assert bandwidth.available is None, "what was read is no limit"
    done = feedrate("plan", out, "-w", "unet3d-a100", "--json")
    assert done.status == 0 and json.loads(done.out)["feeds"][0]["interval"][1] is None


def test_a_baseline_is_a_data_sheet(tmp_path):
    def corner(size, rate, iops, depth):
        side = Side(requests=9, iops=iops, bytes_per_second=rate, latency_mean=0.001, latency_p9999=0.01)
        return Corner(
            pattern="random", block_bytes=size, read_share=1.0, depth=depth, jobs=4, clients=2, read=side
        )

    base = new_result(
        "baseline", command=(), workload={}, dataset={}, storage={}, loader="fio", environment={},
        baseline=(corner(4096, 4e8, 1e5, 32), corner(4 * 2**20, 45e9, 1e4, 4)),
    )  # fmt: skip
    (fed,) = plan(["unet3d-a100"], written(tmp_path / "fio", base)).feeds
    assert fed.limit == "storage bandwidth" and fed.knee == pytest.approx(31.0, rel=2e-3)
    large = replace(base, baseline=base.baseline[1:])  # as of rados bench
    (fed,) = plan(["resnet50-a100"], written(tmp_path / "large", large)).feeds
    assert fed.limit == "storage bandwidth" and fed.limit_bytes_per_second == pytest.approx(45e9)
    small = replace(base, baseline=base.baseline[:1])
    with pytest.raises(SpecError, match="known are reads of up to 4.1 kB"):
        plan(["unet3d-a100"], written(tmp_path / "small", small))


def test_the_answer_is_kept_and_drawn(tmp_path):
    out = tmp_path / "plan"
    words = ("plan", "-s", "weka-performance", "--accelerators", 512, "-w", "unet3d-h100")
    done = feedrate(*words, "--out", out)
    assert done.status == 0, done.err
    assert "feeds 79 x unet3d-h100" in " ".join(done.out.split())
    assert feedrate(*words, "-q").out == feedrate("report", out, "-q").out
    assert read_result(out).kind == "plan" and read_result(out).status == "complete"
    page = tmp_path / "plan.html"
    assert feedrate("report", out, "--html", page).status == 0
    text = page.read_text()
    assert "What 512 accelerators need" in text and "<svg" in text


@pytest.mark.parametrize(
    ("workload", "system", "setting", "said"),
    [
        ("unet3d-a100", None, "loader.workers=4", "plan needs a question"),
        ("unet3d-a100", "nowhere", "loader.workers=4", "there is no system 'nowhere'"),
        ("nothing", "weka-performance", "loader.workers=4", "there is no workload 'nothing'"),
        ("unet3d-a100", "ceph-hdd", "accelerator.step_seconds=0", "does not compute"),
    ],
)
def test_what_is_wrong_is_said(workload, system, setting, said):
    with pytest.raises(SpecError, match=said):
        plan([workload], system, settings=[setting])


def test_less_than_one_of_a_larger_accelerator_is_no_missing_limit(tmp_path):
    one = replace(plain_sweep(), points=plain_sweep().points[:1])
    (fed,) = plan(
        ["unet3d-b200"], written(tmp_path / "run", one), settings=["training.au_threshold=0.5"]
    ).feeds
    assert fed.interval == (pytest.approx(fed.interval[0]), math.inf) and fed.accelerators == 0
    assert "met no limit" in fed.sentence


def test_one_count_that_starved_says_fewer(tmp_path):
    (fed,) = plan(
        ["unet3d-a100"], written(tmp_path / "run", replace(plain_sweep(), points=plain_sweep().points[-1:]))
    ).feeds
    assert fed.accelerators == 0 and "fewer than 32" in fed.sentence


@pytest.mark.parametrize("rates", [(), (math.nan,)])
def test_a_result_without_reads_is_refused(tmp_path, rates):
    points = tuple(replace(plain_sweep().points[0], bytes_per_second=rate) for rate in rates)
    with pytest.raises(SpecError, match="measured no reads"):
        plan(["unet3d-a100"], written(tmp_path / "empty", replace(plain_sweep(), points=points, knee=None)))
