"""The self-check's answers, from what was run: by version, and for results that claim more than happened."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from emulator.config.workload import load_workload
from emulator.plugins.mlperf.rules import self_check
from emulator.record.result import HostShare, Point, RunResult, new_result

FILES = 7 * 2 * 600
MEMORY = 24 * 10**9


def swept(name: str = "unet3d-b200", command: tuple[str, ...] = ("feedrate",), **changes: Any) -> RunResult:
    """Six runs of two accelerators that meet every rule, but for `changes` of each point."""
    workload = load_workload(name)
    epochs, batch = workload.training.epochs, workload.loader.batch_size
    steps = FILES // (7 * 2) * epochs
    samples = steps * batch * 2
    host = HostShare(host="a", ranks=2, bytes=0, samples=0, cpu_seconds=1.0, cores=8)
    size, shares = workload.sample_read.bytes_mean, ("x_ideal", "au", "x_ideal_first", "au_first")
    point = Point(
        ranks=2, hosts=(host,), epochs=epochs, steps=steps, samples=samples, bytes=samples * size, left_out=0,
        seconds=1000.0, samples_per_second=40.0, bytes_per_second=40.0 * size, ideal_samples_per_second=41.0,
        wait_share=0.0, barrier_share=0.0, **dict.fromkeys(shares, 0.97),
    )  # fmt: skip
    return new_result(
        "sweep", command=command, loader="torch", points=(replace(point, **changes),) * 6,
        workload={**asdict(workload), "name": name},
        dataset={
            "files": FILES * batch // 7, "samples": FILES * batch // 7, "bytes": FILES * 146_600_628,
            "samples_per_file": workload.sample.samples_per_file, "format": workload.sample.format,
            "file_bytes_sd": float(workload.sample.bytes_sd),
        },
        storage={"cache": "cold", "shaped_rate": None, "shaped_latency": 0.0, "noise": ""},
        environment={
            "hosts": ["a"], "memory_of_hosts": {"a": MEMORY}, "dataset_mount": {"mount": "/mnt/ai"},
            "out_mount": {"mount": "/"},
        },
    )  # fmt: skip


def broken(result: RunResult) -> list[str]:
    """Names of the rules that are not known to be met."""
    (check,) = self_check(result)
    return [rule.name for rule in check.rules if not rule.met]


def test_the_right_data_meet_every_rule():
    (check,) = self_check(swept())
    assert check.version == "v3.0" and check.open and check.closed
    own = {"storage", "one set"}
    assert {rule.name for rule in check.rules if not rule.number} == own


SAMPLES = swept().points[0].samples


def dataset(**changes: Any) -> RunResult:
    return replace(swept(), dataset={**swept().dataset, **changes})


UNMET = {
    "other sizes": (swept(bytes=SAMPLES * 1_000_000), ["samples that were read"]),
    "one epoch": (swept(epochs=1, steps=600), ["epochs that were run"]),
    "40 steps": (swept(epochs=5, steps=5 * 40), ["epochs that were run"]),
    "resumed": (swept(command=("feedrate", "sweep", "--resume")), ["runs"]),
    "direct": (replace(swept(), loader="direct"), ["format, samples of a file, loader"]),
    "shaped": (replace(swept(), storage={"shaped_rate": 4e8}), ["storage"]),
    "format": (dataset(format="hdf5"), ["format, samples of a file, loader"]),
    "file": (dataset(samples_per_file=2), ["format, samples of a file, loader"]),
    "one size": (dataset(file_bytes_sd=0.0), ["spread of sizes"]),
    "four runs": (replace(swept(), points=swept().points[:4]), ["runs"]),
}


@pytest.mark.parametrize("case", UNMET)
def test_what_did_not_happen_is_not_met(case):
    """As MLPerf's checkers have it: OPEN may change format and data loader, not what is read and computed."""
    result, names = UNMET[case]
    (check,) = self_check(result)
    assert [rule.name for rule in check.rules if not rule.met] == names
    assert check.open == (case in ("direct", "format", "file")) and not check.closed


def test_an_au_that_one_run_did_not_measure_is_unknown():
    """Whatever the other runs had: min() of 0.97 and NaN may be 0.97."""
    points = swept().points
    unmeasured = (*points[:-1], replace(points[-1], au=float("nan"), au_first=float("nan")))
    (check,) = self_check(replace(swept(), points=unmeasured))
    (rule,) = (rule for rule in check.rules if rule.name == "AU of every run")
    assert rule.met is None and not check.closed


def test_what_is_not_recorded_is_not_met():
    result = swept()
    less = {key: value for key, value in result.dataset.items() if key != "samples_per_file"}
    (check,) = self_check(replace(result, dataset=less))
    assert [rule.name for rule in check.rules if rule.met is None] == [
        "one set",
        "epochs that were run",
        "format, samples of a file, loader",
    ]
    for environment, name in (
        ({"memory_of_hosts": {}}, "files of the dataset"),
        ({"memory_of_hosts": {"b": MEMORY}}, "files of the dataset"),
        ({"out_mount": {}}, "file systems"),
    ):
        (check,) = self_check(replace(result, environment={**result.environment, **environment}))
        assert [rule.name for rule in check.rules if rule.met is None] == [name]


@pytest.mark.parametrize(("files", "met"), [(8400, True), (8399, False)])
def test_files_are_rounded_up(files, met):
    """Rule 3.1.2: 500 steps x batch 7 x 2 accelerators are 7,000; 5 x this memory are 8,399.3 files."""
    memory = round(8399.3 * 146_600_628 / 5)
    result = dataset(files=files, samples=files)
    result = replace(result, environment={**result.environment, "memory_of_hosts": {"a": memory}})
    (check,) = self_check(result)
    (rule,) = (rule for rule in check.rules if rule.name == "files of the dataset")
    assert rule.met is met and rule.number == "3.1.2, 3.3.1" and f"{files:,} of 8,400" in rule.value


def test_memory_is_that_of_every_host():
    hosts = tuple(HostShare(**{**asdict(swept().points[0].hosts[0]), "host": name}) for name in "ab")
    two = swept(hosts=hosts)
    for memory, met in (({"a": MEMORY, "b": 100 * MEMORY}, False), ({"a": MEMORY}, None)):
        (check,) = self_check(replace(two, environment={**two.environment, "memory_of_hosts": memory}))
        (rule,) = (rule for rule in check.rules if not rule.met)
        assert (rule.name, rule.met) == ("files of the dataset", met)


def test_runs_on_other_hosts_are_no_set():
    host = swept().points[0].hosts[0]
    two = tuple(HostShare(**{**asdict(host), "host": name, "ranks": 1}) for name in "ab")
    result = replace(swept(), points=(*swept().points[:5], replace(swept().points[5], hosts=two)))
    memory = {"memory_of_hosts": {"a": MEMORY, "b": 1}}
    (check,) = self_check(replace(result, environment={**result.environment, **memory}))
    (rule,) = [rule for rule in check.rules if not rule.met]
    assert (rule.name, rule.value) == ("one set", "hosts: b")


def test_data_and_results_on_one_file_system_are_said():
    result = swept()
    one = {**result.environment, "out_mount": result.environment["dataset_mount"]}
    assert broken(replace(result, environment=one)) == ["file systems"]


@pytest.mark.parametrize("name", ["unet3d-h100", "resnet50-h100", "dlrm-b200", "unet3d-tiny"])
def test_other_workloads_are_in_no_division(name):
    (check,) = self_check(swept(name))
    (rule,) = [rule for rule in check.rules if rule.name == "workload and accelerator"]
    assert rule.met is False and ("what-if" in rule.value) == name.startswith(("resnet50", "dlrm"))
