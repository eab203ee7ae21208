"""What a rule of MLPerf Storage is, and what differs between the versions of the rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from emulator.plugins.mlperf.published import GIB
from emulator.record.result import RunResult

Division = Literal["open and closed", "closed"]
BOTH: Division = "open and closed"
CLOSED: Division = "closed"

Answer = tuple[str, bool | None]
"""Finding as text, and whether the rule is met; None if the result does not tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What one version of the rules allows."""

    workloads: Mapping[str, tuple[str, ...]]
    """Accelerators by trained model."""
    what_if: tuple[str, ...] = ()
    """Models that its tool runs, but that are in no division."""
    saved: tuple[str, ...] = ()
    """Models whose training writes a checkpoint."""
    subsets: tuple[str, ...] = ()
    """Models of which only 8 ranks may be checkpointed."""
    memory: Mapping[str, int]
    """Bytes of memory by accelerator that may be declared for checkpoints."""
    source: str = ""
    """The documents that the numbers of rules are from."""

    @property
    def listed(self) -> str:
        return "; ".join(f"{model} on {' or '.join(made)}" for model, made in self.workloads.items())


_OF_2024 = dict.fromkeys(("unet3d", "resnet50", "cosmoflow"), ("a100", "h100"))
_GPUS = {"a100": 80 * GIB, "h100": 80 * GIB}
VERSIONS = {
    "v1.0": Version(workloads=_OF_2024, saved=("unet3d",), memory=_GPUS),
    "v2.0": Version(
        workloads=_OF_2024,
        saved=("unet3d",),
        subsets=("llama3-8b", "llama3-70b", "llama3-405b", "llama3-1t"),
        memory=_GPUS,
    ),
    "v3.0": Version(
        workloads={"unet3d": ("b200",), "retinanet": ("b200", "mi355")},
        what_if=("cosmoflow", "resnet50", "dlrm", "flux"),
        subsets=("llama3-8b",),  # by the chairs: mlcommons/storage #841
        memory={"b200": 180 * GIB, "mi355": 288 * GIB},  # their table says GB and counts in GiB (#848)
        source="Rules.md of github.com/mlcommons/storage as frozen on 2026-09-17 (mlpstorage 3.0.46)",
    ),
}
"""Versions by name, ascending."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule, with its section in each version."""

    sections: tuple[str | None, str | None, str | None]
    """Section in v1.0, v2.0 and v3.0: empty for a rule of feedrate's, None in a version without it."""
    division: Division
    name: str
    asks: str
    """Requirement, as a format string with `version` and `subject`."""
    check: Callable[[Any], Answer]
    """Function of the subject: TrainingRuns or CheckpointRuns."""

    def section(self, version: str) -> str | None:
        return self.sections[list(VERSIONS).index(version)]


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
