"""What a rule of MLPerf Storage v3.0 is, and the facts that several rules need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from emulator.plugins.mlperf.published import GIB
from emulator.record.result import RunResult

Division = Literal["open and closed", "closed"]
BOTH: Division = "open and closed"
CLOSED: Division = "closed"

Answer = tuple[str, bool | None]
"""Finding as text, and whether the rule is met; None if the result does not tell."""

SOURCE = "Rules.md of github.com/mlcommons/storage as frozen on 2026-09-17 (mlpstorage 3.0.46)"
WORKLOADS = {"unet3d": ("b200",), "retinanet": ("b200", "mi355")}
"""Accelerators by trained model. Its tool runs others, too, as what-if, in no division."""
MEMORY = {"b200": 180 * GIB, "mi355": 288 * GIB}
"""Bytes of memory by accelerator. Their table says GB and counts in GiB (mlcommons/storage #848)."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule."""

    number: str
    """Section of the rules; empty for a rule of feedrate's."""
    division: Division
    name: str
    asks: str
    """Requirement, as a format string with the `subject`."""
    check: Callable[[Any], Answer]
    """Function of the subject: TrainingRuns or CheckpointRuns."""


def model_and_accelerator(name: str) -> tuple[str, str]:
    """Split a workload's name: unet3d and a100 of unet3d-a100-v04."""
    model, accelerator, *_ = [*name.replace("_", "-").split("-"), ""]
    return model, accelerator


def declared_accelerator(result: RunResult) -> str:
    """Return the accelerator that a checkpoint result emulates; empty if none was declared."""
    return str((result.workload.get("accelerator") or {}).get("name", ""))


def file_systems(result: RunResult) -> Answer:
    """Compare the mounts of the data and of the results of feedrate's own run."""
    environment = result.environment
    mount = environment.get("dataset_mount") or environment.get("mount") or {}
    out = environment.get("out_mount") or {}
    if not (mount and out):
        return "not recorded", None
    place = mount.get("mount") or mount.get("source")
    return f"{place} and {out.get('mount')}", mount.get("mount") != out.get("mount")
