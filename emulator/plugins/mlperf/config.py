"""Read a configuration of DLIO: a workload's YAML file, or one as Hydra saved it.

Nothing is evaluated: interpolations of Hydra are values like others, and are reported as left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emulator.errors import SpecError
from emulator.plugins.mlperf.bounded import read_yaml

_SECTIONS = ("dataset", "reader", "data_reader", "train", "workflow", "metric", "model", "checkpoint")
"""A table is a workload if it has at least one of these."""
_OTHER_BENCHMARKS = {
    "a vector database's benchmark": ("database", "index", "search"),
    "a key-value cache's benchmark": ("user_templates", "generation_timing", "kv_cache", "qos_profiles"),
}
"""Sections that only files of another benchmark of MLPerf Storage have, by that benchmark."""
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration that DLIO would run with."""

    name: str
    """Source file, for error messages."""
    table: Mapping[str, Any]
    """The sections model, dataset, reader, train ..."""
    choice: str = ""
    """Name of the chosen workload, such as unet3d_h100."""

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Yield every dotted key with its value; lists and empty tables are values."""
        yield from _leaves(self.table, "")

    def at(self, key: str) -> Any:
        """Return the value under a dotted key; None if it is missing."""
        value: Any = self.table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value

    def number(self, key: str, default: float | None = None) -> float | None:
        """Return the number under a dotted key, or under its `mean`; `default` if it is missing.

        Raises SpecError when it is not a number from 0 to 1e18.
        """
        value = self.at(key)
        if isinstance(value, Mapping):
            value = value.get("mean")
        if isinstance(value, str) and _NUMBER.fullmatch(value.strip()):
            value = float(value)  # YAML 1.1 takes 1e-3 for text, DLIO's reader does not
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SpecError(f"{self.name}: {key} must be a number, not {str(value)[:40]!r}")
        if not 0 <= value <= 1e18:
            raise SpecError(f"{self.name}: {key} must be at least 0 and no more than 1e18, not {value:g}")
        return value

    def whole(self, key: str, default: int = 0) -> int:
        """Return the number under a dotted key, rounded: YAML files have record lengths with fractions."""
        value = self.number(key)
        return default if value is None else round(value)

    def text(self, key: str, default: str = "") -> str:
        """Return the text under a dotted key. Raises SpecError."""
        value = self.at(key)
        if value is None:
            return default
        if not isinstance(value, str | int | float) or isinstance(value, bool) or len(str(value)) > 200:
            raise SpecError(f"{self.name}: {key} must be a short text, not {str(value)[:40]!r}")
        return str(value)

    @property
    def purpose(self) -> Literal["training", "checkpoints", "generation", "nothing"]:
        """The job that DLIO would run: training unless `workflow` says otherwise or there is no dataset."""
        if self.at("workflow.train") is not False and (self.at("dataset") or self.at("train")):
            return "training"
        if self.at("workflow.checkpoint") is True:
            return "checkpoints"
        return "generation" if self.at("workflow.generate_data") is True else "nothing"

    def model(self, default: str) -> str:
        """Return the model's name: `model` until MLPerf Storage v0.5, `model.name` since."""
        return self.text("model.name" if isinstance(self.at("model"), Mapping) else "model", default)


def _leaves(table: Mapping[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def read_config(path: Path) -> Config:
    """Read the configuration in a YAML file. Raises SpecError, StorageError."""
    table = read_yaml(path)
    if isinstance(table, Mapping) and "defaults" in table and "workload" not in table:
        raise SpecError(f"{path} only names other files", "import the workload's own, workload/NAME.yaml")
    return Config(str(path), workload_table(table, str(path)), path.stem)


def workload_table(table: Any, name: str) -> Mapping[str, Any]:
    """Return the workload in a configuration: its own keys, or those under `workload`. Raises SpecError."""
    sections: Mapping[str, Any] = table if isinstance(table, Mapping) else {}
    if isinstance(sections.get("workload"), Mapping):
        inner = sections["workload"]
        for key in sections.keys() & inner.keys():
            raise SpecError(f"{name}: {key} is at the top and in workload", "remove one of them")
        sections = {key: value for key, value in sections.items() if key != "workload"} | inner
    for benchmark, keys in _OTHER_BENCHMARKS.items():
        if not sections.keys().isdisjoint(keys):
            raise SpecError(f"{name}: a configuration of {benchmark}", "only training is imported")
    if sections.keys().isdisjoint(_SECTIONS):
        hint = "it needs a section such as dataset, reader or train"
        raise SpecError(f"{name}: not a configuration of DLIO", hint)
    if "data_reader" in sections:  # DLIO's own name of the section, which takes precedence over `reader`
        sections = {**sections, "reader": sections["data_reader"]}
        del sections["data_reader"]
    return sections
