"""What published runs of v3.0 have, and no document of feedrate's has: none of it is a contradiction."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from artefacts import LLAMA, Run
from command import feedrate
from test_rules import swept
from test_trees import checkpoint_run

from emulator.config.workload import load_workload
from emulator.dataset.sizes import needed_data
from emulator.plugins.mlperf.results import import_folder, results_of
from emulator.plugins.mlperf.rules import Outcome, self_check
from emulator.plugins.mlperf.trainings import import_run
from emulator.plugins.mlperf.tree import find_runs, read_run
from emulator.record.result import RunResult

START = datetime(2026, 1, 1)
ASKED = Run(batch=7, step=0.323, record=146_600_628, epochs=5, first=0.4, steps=10)
"""As MLPerf publishes 3D U-Net: its documents have nothing to say."""


def rewrite(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**(json.loads(path.read_text()) if path.exists() else {}), **values}))


def results(tree: Path) -> dict[str, RunResult]:
    return {name: result for name, (result, _) in results_of(import_folder(tree), ()).items()}


def outcome(result: RunResult, name: str) -> Outcome:
    (check,) = self_check(result, version="v3.0")
    (rule,) = [rule for rule in check.rules if rule.name == name]
    return rule


def checkpoints(tree: Path, pause: float = 20.0) -> dict[str, Path]:
    """Ten writes and ten reads in two runs, the second of which begins `pause` after the first ended."""
    place, later = tree / "One/results/sys/checkpointing/llama3-8b", START + timedelta(seconds=105 + pause)
    return {
        verb: checkpoint_run(place / f"{start:%Y%m%d_%H%M%S}", verb, start, count=10)
        for verb, start in (("save", START), ("load", later))
    }


@pytest.mark.parametrize(("stated", "met"), [("fsync: True", True), ("fsync: False", False), ("x: 1", None)])
def test_fsync_is_what_every_configuration_says(tmp_path, stated, met):
    runs = checkpoints(tmp_path)
    config = runs["load"] / "dlio_config/config.yaml"
    config.write_text(config.read_text().replace("fsync: True", stated))
    (result,) = results(tmp_path).values()
    assert "fsync: True" in LLAMA and outcome(result, "fsync").met is met


@pytest.mark.parametrize(("same", "met"), [(False, True), (True, False), ("false", None)])
def test_file_systems_are_told_by_the_documents(tmp_path, same, met):
    separation = checkpoints(tmp_path)["save"] / "fs_separation.json"
    rewrite(separation, same_filesystem=same)
    training = Run().write(tmp_path / "One/results/sys/training/unet3d/run/20260101_000000", "v3.0")
    rewrite(training / "fs_separation.json", same_filesystem=same)
    for result in results(tmp_path).values():
        assert outcome(result, "file systems").met is met
    done = feedrate("import", separation.parent, "--out", tmp_path / "out")
    assert done.status == 0, done.err
    assert feedrate("export", "--mlperf", tmp_path / "out", "--out", tmp_path / "back").status == 0
    (back,) = find_runs(tmp_path / "back")
    assert read_run(back).separation == {"same_filesystem": same}


@pytest.mark.parametrize(
    ("pause", "value", "met"), [(20, "20.0 s", True), (31, "31.0 s", False), (-1, "-1.0 s", False)]
)
def test_reads_begin_within_half_a_minute_of_the_writes(tmp_path, pause, value, met):
    runs = checkpoints(tmp_path, pause)
    (result,) = results(tmp_path).values()
    rule = outcome(result, "pause between runs")
    assert (rule.number, rule.value, rule.met) == ("4.7.1", value, met)
    rewrite(runs["save"] / "summary.json", end=None)
    (result,) = results(tmp_path).values()
    assert outcome(result, "pause between runs").met is None


def test_an_imported_checkpoint_has_no_figure_of_the_cpu(tmp_path):
    assert feedrate("import", checkpoints(tmp_path)["save"], "--out", tmp_path / "out").status == 0
    assert feedrate("report", tmp_path / "out", "--csv", tmp_path / "table.csv").status == 0
    (row,) = csv.DictReader((tmp_path / "table.csv").read_text().splitlines())
    assert row["CPU-s per GB"] == "nan", "as a point of an import has what was not published"


@pytest.mark.parametrize(
    ("missing", "value", "met"), [(0.5, "4.999", True), (1.5, "4.998", False), (4000.0, "2.7 x", False)]
)
def test_a_dataset_is_large_enough_by_the_files_of_their_datasize(missing, value, met):
    """ZettaLane's has 4,710,038 files, which their datasize asks for: 5 x its memory is 0.67 files more."""
    result = swept()
    file, files = 146_600_628, 4710
    result = replace(
        result,
        dataset={**result.dataset, "bytes": files * file},
        environment={**result.environment, "memory_of_hosts": {"a": round((files + missing) * file / 5)}},
    )
    rule = outcome(result, "dataset / memory of all client hosts")
    assert rule.value.startswith(value) and rule.met is met


@pytest.mark.parametrize("name", ["unet3d-b200", "retinanet-b200", "resnet50-h100"])
def test_datasize_asks_for_no_fewer_files_than_theirs(name):
    workload = load_workload(name)
    each = workload.sample.samples_per_file
    for memory in (297_097_648 << 10, 16 << 30, 5_000_000_000_001):
        for accelerators in (1, 7, 72):
            theirs = max(
                5 * 3 * memory // (each * workload.sample.bytes_mean),
                500 * accelerators * workload.loader.batch_size // each,
            )
            assert 0 <= needed_data(workload, accelerators, 3, memory).files - theirs <= 1


def stats(folder: Path, epoch: str, **values: str) -> None:
    path = folder / "0_per_epoch_stats.json"
    table = json.loads(path.read_text())
    table[epoch] |= values
    path.write_text(json.dumps(table))


@pytest.mark.parametrize(("duration", "odd"), [("3.69", False), ("3.01", True), ("8.24", True)])
def test_an_epoch_is_timed_without_the_end_of_its_loader(tmp_path, duration, odd):
    run = replace(ASKED, teardown=4.3)
    folder = run.write(tmp_path / "20260101_000000", "v3.0")
    assert f"{run.seconds:.2f}" == "3.69" and not import_run(read_run(folder)).said
    stats(folder, "2", duration=duration)
    said = import_run(read_run(folder)).said
    assert [f"epoch 2: its duration is {duration} s" in why for why in said] == [True] * odd


B200 = Run(steps=200, oversleep=0.004, workload="unet3d_b200")


def test_an_accelerator_of_one_version_tells_the_formula(tmp_path):
    folder = B200.write(tmp_path / "run", "v3.0", logs=False, metadata=False)
    imported = import_run(read_run(folder))
    assert imported.figures.skips == 1 and imported.figures.x_ideal == pytest.approx(B200.x_ideal)
    hydra = folder / "dlio_config/hydra.yaml"
    hydra.write_text(hydra.read_text().replace("unet3d_b200", "unet3d_h100"))
    assert import_run(read_run(folder)).figures.skips is None, "the documents do not agree"


def test_what_was_published_is_shown_where_the_formula_is_unknown(tmp_path):
    run = replace(B200, workload="unet3d_h100")
    run.write(tmp_path / "run", "v3.0", logs=False, metadata=False)
    assert feedrate("import", tmp_path / "run", "--out", tmp_path / "out").status == 0
    shown = " ".join(feedrate("report", tmp_path / "out").out.split())
    au = 100 * run.x_ideal * 1.04
    assert f"2 processes had {au:.1f} % accelerator utilization as published" in shown
    assert "nan" not in shown and "too few steps" not in shown


def test_an_override_may_stand_in_the_metadata_alone(tmp_path):
    folder = ASKED.write(tmp_path / "20260101_000000", "v3.0")
    (path,) = folder.glob("*_metadata.json")
    config = folder / "dlio_config/config.yaml"
    table = yaml.safe_load(config.read_text())
    table["workload"]["reader"]["read_threads"] = 24
    config.write_text(yaml.safe_dump(table))
    rewrite(path, parameters=table["workload"])
    (why,) = import_run(read_run(folder)).said
    assert why == "loader.workers is 24 here, 4 in MLPerf's unet3d-h100: no override says so"
    rewrite(path, override_parameters={"reader.read_threads": "24"})
    assert not import_run(read_run(folder)).said


@pytest.mark.parametrize(
    ("cores", "said"),
    [
        (1032, "hosts differ: host_cpu_count is 258 on average, 8 by /proc of the first"),
        (4, "host_cpu_count is 1 of a host in summary.json, 8 by its /proc"),
    ],
)
def test_a_mean_of_unlike_hosts_is_no_contradiction(tmp_path, cores, said):
    folder = replace(ASKED, ranks=4, hosts=4).write(tmp_path / "20260101_000000", "v3.0")
    rewrite(folder / "summary.json", host_cpu_count=[cores, 0, 0, 0], host_memory_GB=[64.0, 0.0, 0.0, 0.0])
    (why,) = import_run(read_run(folder)).said
    assert why == said
