"""Export results as a tree of MLPerf Storage v3.0, marked as no submission, with a self-check.

FOLDER/NOT_A_SUBMISSION.txt, self-check.json
FOLDER/code-images/.mlps-image-pool                   the pool is empty: feedrate is not MLPerf's code
FOLDER/DIVISION/feedrate/submission.yaml              the list of runs
FOLDER/DIVISION/feedrate/systems/                     for the description of the system
FOLDER/DIVISION/feedrate/results/SYSTEM/training/MODEL/{datasize,datagen,run}/YYYYMMDD_HHmmss/
FOLDER/DIVISION/feedrate/results/SYSTEM/checkpointing/MODEL/YYYYMMDD_HHmmss/
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from emulator.config.workload import stored_workload
from emulator.errors import SpecError, StorageError, storage_errors
from emulator.files import write_whole
from emulator.plugins.mlperf.bounded import yaml_text
from emulator.plugins.mlperf.datasize import needed_data
from emulator.plugins.mlperf.documents import STAMP, checkpoint_run, metadata, training_runs
from emulator.plugins.mlperf.published import GIB
from emulator.plugins.mlperf.rule import SOURCE, model_and_accelerator
from emulator.plugins.mlperf.rules import Check, self_check
from emulator.plugins.mlperf.tree import RunFolder, write_json, write_run
from emulator.record.out import check_out, read_result
from emulator.record.result import RunResult

NOTICE = "NOT_A_SUBMISSION.txt"
CHECK = "self-check.json"
_ORGANIZATION = "feedrate"
_EDITION = "3.0"
_LAYOUT = 3
"""Version of MLPerf's layout of results."""


def export_results(outs: Sequence[Path], folder: Path) -> list[Check]:
    """Write one set of results to the new folder `folder`, and check it against the rules.

    A set is one result, or the result of a checkpoint's writes and that of its reads. Raises SpecError,
    StorageError.
    """
    results = sorted((_whole_result(out) for out in outs), key=lambda result: result.created)
    result = results[0]
    if len(results) > 1 and not _is_one_set(results):
        what = f"the {len(results)} results are not a checkpoint's writes and its reads"
        raise SpecError(what, "export each by itself")
    check_out(folder, force=False, hint="choose another --out")
    au: list[float] | None = None
    if result.kind == "checkpoint":
        runs = [checkpoint_run(result) for result in results]
    else:
        runs = training_runs(outs[0], result)
        au = [run.summary["metric"]["train_au_mean_percentage"] / 100 for run in runs]
    checks = self_check(*results, au=au)
    with storage_errors("cannot make the folder"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        _write_tree(folder, result, runs)
        write_json(folder / CHECK, [{**asdict(c), "open": c.open, "closed": c.closed} for c in checks])
        write_whole(folder / NOTICE, _notice(result, checks))
    except StorageError:  # a partial export would block the next one
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return checks


def _is_one_set(results: Sequence[RunResult]) -> bool:
    """Return whether one result wrote checkpoints and another read the same ones."""
    files = {(made.bytes, made.ranks) for result in results for made in result.checkpoints}
    directions = sorted(sorted({made.direction for made in result.checkpoints}) for result in results)
    return len(files) == 1 and directions == [["read"], ["write"]]


def _whole_result(out: Path) -> RunResult:
    """Return the result in `out`. Raises SpecError if it cannot be exported."""
    result = read_result(out)
    if result.kind not in ("run", "sweep", "checkpoint"):
        what = f"{out} is of the kind {result.kind}"
        raise SpecError(what, "only feedrate's own runs, sweeps and checkpoints are exported")
    if result.status != "complete" or not (result.points or result.checkpoints):
        raise SpecError(f"{out} is incomplete", "only whole results are exported")
    return result


def _write_tree(folder: Path, result: RunResult, runs: Sequence[RunFolder]) -> None:
    """Write the runs as the submission of one organization. Raises StorageError."""
    division = "closed" if all(run.metadata["verification"] == "closed" for run in runs) else "open"
    organization = folder / division / _ORGANIZATION
    system = _file_name(result.label or "system")
    place = organization / "results" / system
    if result.kind == "checkpoint":
        leaves = place / "checkpointing" / _file_name(str(result.workload["name"]))
    else:
        model = place / "training" / _file_name(model_and_accelerator(str(result.workload["name"]))[0])
        leaves = model / "run"
        for phase, leaf in _phases(result, runs).items():
            with storage_errors("cannot make the folder"):
                (model / phase / leaf["run_datetime"]).mkdir(parents=True)
            when = leaf["run_datetime"]
            write_json(model / phase / when / f"training_{when}_metadata.json", leaf)
    for run in runs:
        write_run(run, leaves / run.name)
    for leaf_folder in sorted(path.parent for path in place.rglob("*_metadata.json")):
        write_json(leaf_folder / "provenance.json", _provenance())
    with storage_errors("cannot make the folder"):
        (organization / "systems").mkdir()
        (folder / "code-images").mkdir()
    write_whole(folder / "code-images" / ".mlps-image-pool", "")
    write_whole(organization / "submission.yaml", yaml_text(_manifest(organization, division, system)))


def _phases(result: RunResult, runs: Sequence[RunFolder]) -> dict[str, dict[str, Any]]:
    """Return the metadata of the phases before the runs: what is needed, and what was generated."""
    workload, most = stored_workload(result.workload), max(point.ranks for point in result.points)
    memory = result.environment.get("memory_of_hosts") or {}
    hosts = len(memory) or 1
    needed = needed_data(workload, most, 1, sum(memory.values()))
    generated = int(result.dataset["files"])
    size = int(result.dataset["bytes"])
    first = datetime.strptime(runs[0].name, STAMP)
    arguments = {
        "accelerator_type": model_and_accelerator(workload.name)[1],
        "max_accelerators": most,
        "num_client_hosts": hosts,
        "client_host_memory_in_gb": sum(memory.values()) / GIB / hosts,
    }
    phases = {}
    phases_before = (("datasize", needed.files, needed.bytes), ("datagen", generated, size))
    for number, (phase, files, total) in enumerate(phases_before):
        name = (first - timedelta(seconds=2 - number)).strftime(STAMP)
        facts = {"num_files_train": files, "num_subfolders_train": 0, "total_disk_bytes": total}
        config = {"dataset": {**runs[0].metadata["parameters"]["dataset"], **facts}}
        leaf = metadata("training", name, result, most, config, {})
        phases[phase] = {**leaf, "command": phase, "args": {**leaf["args"], **arguments}}
    return phases


def _provenance() -> dict[str, Any]:
    """Return a run's provenance.json. MLPerf's word for what cannot be known is "unknown"."""
    unknown = "unknown"
    stamps = ("rules_edition", "layout_version", "tool", "dlio", "storage_library", "core_config")
    return {
        "schema": "mlps-run-provenance/1",
        "rules_edition": _EDITION,
        "layout_version": _LAYOUT,
        "tool": {"name": "feedrate", "version": unknown, "git_sha": unknown, "code_image": unknown},
        "dlio": dict.fromkeys(("version", "source", "commit"), unknown),
        "storage_library": {"name": "none"},
        "core_config": {"algorithm": "core-config-v1", "allowlist": unknown, "hash": unknown, "keys": []},
        "stamped_at": unknown,
        "stamped_by": "feedrate",
        "provenance": dict.fromkeys(stamps, "declared") | {"core_config": unknown},
        "notes": "made by feedrate: not an official MLPerf Storage submission",
    }


def _manifest(organization: Path, division: str, system: str) -> dict[str, Any]:
    """Return submission.yaml: the list of runs, which MLPerf's tools compare with the tree."""
    leaves = sorted(path.parent for path in organization.rglob("provenance.json"))
    return {
        "schema": "mlps-submission-manifest/1",
        "organization": _ORGANIZATION,
        "division": division,
        "rules_edition": _EDITION,
        "layout_version": _LAYOUT,
        "systems": [{"name": system}],
        "runs": [{"leaf": leaf.relative_to(organization).as_posix(), "system": system} for leaf in leaves],
        "code_images": [],
    }


def _notice(result: RunResult, checks: Sequence[Check]) -> str:
    """Return the text of `NOTICE`: the folder's purpose and the outcome of each rule."""
    first = [
        f"Made by feedrate {result.version}, from a result of the kind {result.kind}.",
        "This is not an official MLPerf Storage submission: that needs MLPerf's own code, rules and review.",
        "There is no image of MLPerf's code and no core-config hash, and so no comparability class of",
        "editions.yaml. There is no description of the system: systems/ is empty.",
        "Fields and units are those of MLPerf Storage: its MB is 2^20 bytes, its GB 2^30.",
        f"Numbers of rules are those of {SOURCE}.",
    ]
    return "\n\n".join("\n".join(lines) for lines in (first, *(check.lines for check in checks))) + "\n"


def _file_name(name: str) -> str:
    """Return `name` as one part of a path, since results may contain any text."""
    return re.sub(r"[^\w-]", "_", name)[:80] or "run"
