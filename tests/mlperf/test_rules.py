"""MLPerf's rules by example: each case is a set of results, and every rule that it does not meet."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import pytest

from emulator.config.checkpoint import load_checkpoint_model
from emulator.config.workload import load_workload
from emulator.plugins.checkpoint.job import Report, checkpoint_of
from emulator.plugins.mlperf.rule import CLOSED
from emulator.plugins.mlperf.rules import broken, self_check
from emulator.record.result import Checkpoint, HostShare, Point, RunResult, new_result

GIB = 2**30
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
        storage={"cache": "cold", "shaped_rate": None, "shaped_latency": 0.0},
        environment={
            "hosts": ["a"], "memory_of_hosts": {"a": MEMORY}, "dataset_mount": {"mount": "/mnt/ai"},
            "out_mount": {"mount": "/"},
        },
    )  # fmt: skip


def saved(count: int = 10, ranks: int = 8, **workload: object) -> RunResult:
    """Checkpoints of Llama 3 8B that meet every rule; writes take 4 and 2 s in turn, reads 1 s."""

    def made(direction: str, number: int, seconds: float) -> Checkpoint:
        reports = [Report(size=round(104.7 * GIB) // ranks, seconds=seconds)] * ranks
        return checkpoint_of(direction, number, 1, 10.0 * number, reports)

    checkpoints = [
        made(direction, number, slow)
        for direction, times in (("write", (4.0, 2.0)), ("read", (1.0, 1.0)))
        for number, slow in enumerate(times * (count // 2))
    ]
    model = asdict(load_checkpoint_model("llama3-8b"))
    return RunResult(
        kind="checkpoint", status="complete", version="0", created="2026-11-21T00:00:00Z",
        command=("feedrate",), loader="checkpoint", checkpoints=tuple(checkpoints),
        workload={**model, "scale": "1", "subset": False, "data_parallel": 8,
                  "accelerator": {"name": "b200"}, **workload},
        dataset={"path": "/mnt"}, storage={"cache": "cold", "direct": True},
        environment={
            "hosts": ["a"], "memory_of_hosts": {"a": 4 * GIB}, "mount": {"mount": "/mnt"},
            "out_mount": {"mount": "/"}, "cores": 3,
        },
    )  # fmt: skip


SWEPT, SAVED = swept(), saved()
SAMPLES = SWEPT.points[0].samples
HOST = SWEPT.points[0].hosts[0]
LOADER = "format, samples of a file, loader"


def dataset(**changes: Any) -> RunResult:
    return replace(SWEPT, dataset={**SWEPT.dataset, **changes})


def around(result: RunResult, **changes: Any) -> RunResult:
    return replace(result, environment={**result.environment, **changes})


def files_and_memory(files: int) -> RunResult:
    """500 steps x batch 7 x 2 accelerators are 7,000 files; 5 x this memory are 8,399.3, rounded up 8,400."""
    return around(dataset(files=files, samples=files), memory_of_hosts={"a": round(8399.3 * 146_600_628 / 5)})


def one_host_changed() -> RunResult:
    """The last of six runs had another host."""
    other = replace(SWEPT.points[5], hosts=tuple(replace(HOST, host=name, ranks=1) for name in "ab"))
    return around(replace(SWEPT, points=(*SWEPT.points[:5], other)), memory_of_hosts={"a": MEMORY, "b": 1})


def one_unmeasured() -> RunResult:
    """Whatever the other runs had: min() of 0.97 and NaN may be 0.97."""
    return replace(SWEPT, points=(*SWEPT.points[:5], replace(SWEPT.points[5], au=float("nan"))))


def two_hosts(**memory: int) -> RunResult:
    return around(swept(hosts=tuple(replace(HOST, host=name) for name in "ab")), memory_of_hosts=memory)


def made(result: RunResult, **changes: Any) -> RunResult:
    return replace(result, checkpoints=tuple(replace(one, **changes) for one in result.checkpoints))


def model(name: str, ranks: int = 8, **workload: object) -> RunResult:
    """A checkpoint of another model; its sizes are left as they are."""
    return saved(ranks=ranks, **{**asdict(load_checkpoint_model(name)), **workload})


def phase(direction: str, start: str, end: str) -> RunResult:
    """A run of only the writes, or only the reads."""
    some = tuple(one for one in SAVED.checkpoints if one.direction == direction)
    result = replace(SAVED, checkpoints=some, created=f"2026-11-21T{end}+00:00")
    return around(result, invocation_start=f"2026-11-21T{start}+00:00")


WRITES = phase("write", "09:58:00", "10:00:00")
NO_SAMPLES = {key: value for key, value in SWEPT.dataset.items() if key != "samples_per_file"}
CASES: dict[str, tuple[RunResult | tuple[RunResult, ...], dict[str, bool | None]]] = {
    "six runs as published": (SWEPT, {}),
    "other sizes": (swept(bytes=SAMPLES * 1_000_000), {"samples that were read": False}),
    "one epoch": (swept(epochs=1, steps=600), {"epochs that were run": False}),
    "40 steps": (swept(epochs=5, steps=5 * 40), {"epochs that were run": False}),
    "a resumed sweep": (swept(command=("feedrate", "sweep", "--resume")), {"runs": None}),
    "the direct loader": (replace(SWEPT, loader="direct"), {LOADER: False}),
    "emulated storage": (replace(SWEPT, storage={"shaped_rate": 4e8}), {"storage": False}),
    "another format": (dataset(format="hdf5"), {LOADER: False}),
    "two samples a file": (dataset(samples_per_file=2), {LOADER: False}),
    "files of one size": (dataset(file_bytes_sd=0.0), {"spread of sizes": False}),
    "four runs": (replace(SWEPT, points=SWEPT.points[:4]), {"runs": False}),
    "an AU not measured": (one_unmeasured(), {"AU of every run": None}),
    "samples not recorded": (
        replace(SWEPT, dataset=NO_SAMPLES),
        {"one set": None, "epochs that were run": None, LOADER: None},
    ),
    "memory not recorded": (around(SWEPT, memory_of_hosts={}), {"files of the dataset": None}),
    "mount not recorded": (around(SWEPT, out_mount={}), {"file systems": None}),
    "one file system": (around(SWEPT, out_mount={"mount": "/mnt/ai"}), {"file systems": False}),
    "enough files": (files_and_memory(8400), {}),
    "a file too few": (files_and_memory(8399), {"files of the dataset": False}),
    "memory of two hosts": (two_hosts(a=MEMORY, b=100 * MEMORY), {"files of the dataset": False}),
    "memory of one of two": (two_hosts(a=MEMORY), {"files of the dataset": None}),
    "another host": (one_host_changed(), {"one set": False}),
    "checkpoints as published": (SAVED, {}),
    "a scaled model": (saved(scale="1/1000"), {"sizes": False}),
    "a tenth was written": (made(SAVED, bytes=SAVED.checkpoints[0].bytes // 10), {"sizes": False}),
    "four checkpoints": (saved(count=4), {"checkpoints": False}),
    "16 ranks": (saved(ranks=16), {"ranks": False}),
    "warm": (replace(SAVED, storage={"cache": "warm"}), {"caches": False}),
    "accelerator not declared": (saved(accelerator={"name": ""}), {"accelerators' memory": False}),
    "h100": (saved(accelerator={"name": "h100"}), {"accelerators' memory": False}),
    "mi355": (saved(accelerator={"name": "mi355"}), {}),
    "results beside checkpoints": (around(SAVED, out_mount={"mount": "/mnt"}), {"file systems": False}),
    "a subset of 8B": (saved(subset=True), {}),
    "four ranks a host": (made(SAVED, hosts=2), {"ranks of a host": None}),
    "two ranks a host": (made(SAVED, hosts=4), {"ranks of a host": False}),
    "writes, then reads": ((WRITES, phase("read", "10:00:20", "10:03:00")), {}),
    "reads too late": ((WRITES, phase("read", "10:00:31", "10:03:00")), {"pause between runs": False}),
    "clocks differ": ((WRITES, phase("read", "09:59:50", "10:03:00")), {"pause between runs": None}),
    "only writes": (WRITES, {"checkpoints": None}),
}


@pytest.mark.parametrize("case", CASES)
def test_every_rule_that_is_not_met_is_named(case):
    """None is unknown. OPEN may change format and data loader, not what is read and computed."""
    results, unmet = CASES[case]
    (check,) = self_check(*(results if isinstance(results, tuple) else (results,)))
    assert {rule.name: rule.met for rule in check.rules if not rule.met} == unmet
    of_both = [rule.name for rule in check.rules if not rule.met and rule.division != CLOSED]
    assert (check.open, check.closed) == (not of_both, not unmet)


@pytest.mark.parametrize(
    ("name", "ranks", "met"),
    [("llama3-8b", 8, True), ("llama3-8b", 16, False), ("llama3-70b", 8, False), ("llama3-1t", 8, False)],
)
def test_a_subset_is_8_ranks_of_the_8b_model_only(name, ranks, met):
    """Rule 4.3.5 as MLPerf's chairs read it: its published text had lost a "not"."""
    (check,) = self_check(model(name, ranks, subset=True))
    assert [rule.met for rule in check.rules if rule.name == "subset"] == [met]


@pytest.mark.parametrize(("accelerator", "met"), [("b200", True), ("mi355", True), ("h100", False)])
def test_the_declared_accelerators_hold_the_model(accelerator, met):
    """70B on 8 ranks, OPEN: 912 GiB in 8 x 180 or 8 x 288 GiB."""
    (check,) = self_check(made(model("llama3-70b", accelerator={"name": accelerator}), bytes=912 * GIB))
    assert [rule.met for rule in check.rules if rule.name == "accelerators' memory"] == [met]


@pytest.mark.parametrize("name", ["unet3d-h100", "resnet50-h100", "dlrm-b200", "unet3d-tiny"])
def test_other_workloads_are_in_no_division(name):
    (check,) = self_check(swept(name))
    assert [rule.met for rule in check.rules if rule.name == "workload and accelerator"] == [False]


def test_one_half_of_a_set_breaks_no_rule_before_the_other_is_run():
    assert not broken([WRITES], "v3.0", closed=True)
