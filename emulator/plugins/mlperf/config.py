"""Read a configuration of DLIO: a YAML file with Hydra's overrides applied.

Overrides are those of DLIO's command line and of overrides.yaml, such as `++workload.reader.batch_size=8`:
assignments of a plain value or list to a dotted key, with or without `+` or `++` and the leading `workload.`,
and deletions (`~key`). A group (`workload=unet3d_h100`) chooses a file. Interpolations, functions and sweeps
are refused: nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from emulator.errors import SpecError
from emulator.plugins.mlperf.bounded import parse_yaml, read_yaml
from emulator.text import MASK, names_secret

SECTIONS = ("dataset", "reader", "data_reader", "train", "workflow", "metric", "model", "checkpoint")
"""A table is a workload if it has at least one of these."""

_OTHER_BENCHMARKS = {
    "a vector database's benchmark": ("database", "index", "search"),
    "a key-value cache's benchmark": ("user_templates", "generation_timing", "kv_cache", "qos_profiles"),
}
"""Sections that only files of another benchmark of MLPerf Storage have, by that benchmark."""

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")
_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_WORKLOAD_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")
_TOP_VALUES = ("model", "framework")
"""Keys at the top of a workload whose values are not tables."""


@dataclass(frozen=True, slots=True)
class Override:
    """An assignment or a deletion."""

    path: tuple[str, ...]
    """Keys from the top, without the leading `workload`."""
    value: Any
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class Overrides:
    """Overrides of the workload in order, the chosen workload, and overrides of Hydra or of other groups."""

    changes: tuple[Override, ...] = ()
    workload: str = ""
    others: tuple[str, ...] = ()


def parse_overrides(texts: Sequence[str]) -> Overrides:
    """Parse overrides, in order. Raises SpecError."""
    changes: list[Override] = []
    others: list[str] = []
    workload = ""
    for text in texts:
        if text.lstrip("+~").startswith("hydra"):
            others.append(text)
            continue
        change = _override(text)
        if change.path == ("workload",):
            workload = str(change.value or "")
        elif len(change.path) == 1 and isinstance(change.value, str) and change.path[0] not in _TOP_VALUES:
            others.append(text)
        else:
            changes.append(change)
    return Overrides(tuple(changes), workload, tuple(others))


def _override(text: str) -> Override:
    """Parse one override. Raises SpecError."""
    body = text.lstrip("+")
    deletes = body.startswith("~")
    key, equals, value_text = body.removeprefix("~").partition("=")
    if not _KEY.fullmatch(key) or not (equals or deletes):
        raise SpecError(f"the override {text[:80]!r} is not KEY=VALUE", "for example reader.batch_size=8")
    path = tuple(key.split("."))
    if len(path) > 1 and path[0] == "workload":
        path = path[1:]
    if deletes:
        return Override(path, None, deletes=True)
    if names_secret(key):
        return Override(path, MASK)
    if "${" in value_text or value_text.strip().startswith(("&", "*", "!", "|", ">")):
        what = f"the override {text[:80]!r} is not a plain value"
        raise SpecError(what, "interpolations are not evaluated")
    return Override(path, parse_yaml(value_text, f"the override {text[:80]!r}"))


def apply(config: Mapping[str, Any], changes: Sequence[Override]) -> dict[str, Any]:
    """Return a copy of `config` with `changes` applied. Raises SpecError."""
    result = dict(config)
    for change in changes:
        table = result
        for depth, key in enumerate(change.path[:-1], 1):
            inner = table.get(key)
            if inner is not None and not isinstance(inner, Mapping):
                raise SpecError(f"{'.'.join(change.path[:depth])} is not a table: it has no keys to override")
            table[key] = dict(inner or {})
            table = table[key]
        if change.deletes:
            table.pop(change.path[-1], None)
        else:
            table[change.path[-1]] = change.value
    return result


@dataclass(frozen=True, slots=True)
class Config:
    """The configuration that DLIO would run with."""

    name: str
    """Source file, for error messages."""
    table: Mapping[str, Any]
    """The sections model, dataset, reader, train ..."""
    choice: str = ""
    """Name of the chosen workload, such as unet3d_h100, from the file's name or an override."""
    others: tuple[str, ...] = ()
    """Overrides that do not concern the workload."""

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


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """Read the configuration in a YAML file and apply Hydra's overrides.

    The file may be a workload's (unet3d_h100.yaml), a configuration as Hydra saved it (with the workload
    under `workload`), or the config.yaml of a folder with `workload/NAME.yaml` beside it. Raises SpecError,
    StorageError.
    """
    parsed = parse_overrides(overrides)
    table = read_yaml(path)
    if isinstance(table, Mapping) and "defaults" in table and "workload" not in table:
        defaults = table["defaults"] if isinstance(table["defaults"], list) else []
        choices = [item.get("workload") for item in defaults if isinstance(item, Mapping)]
        names = [parsed.workload] if parsed.workload else [name for name in choices if isinstance(name, str)]
        if len(names) != 1:
            raise SpecError(
                f"{path} chooses no workload", "add --override workload=NAME, or give its own file"
            )
        if not _WORKLOAD_NAME.fullmatch(names[0]):  # a name with slashes could lead out of the folder
            raise SpecError(f"{path}: {names[0][:80]!r} is not the name of a workload")
        return read_config(path.parent / "workload" / f"{names[0]}.yaml", overrides)
    changed = apply(workload_table(table, str(path)), parsed.changes)
    if "workload" not in table and parsed.workload not in ("", path.stem):
        # Hydra would read another file: this one's step is not that of the accelerator in its name.
        raise SpecError(
            f"{path} is not the workload {parsed.workload}", f"import {parsed.workload}.yaml itself"
        )
    return Config(str(path), changed, parsed.workload or path.stem, parsed.others)


def workload_table(table: Any, name: str) -> Mapping[str, Any]:
    """Return the workload in a configuration: the keys at its top and those under `workload`.

    Raises SpecError, also where the two levels contradict each other.
    """
    inner: Mapping[str, Any] = table if isinstance(table, Mapping) else {}
    if isinstance(inner.get("workload"), Mapping):
        top = {key: value for key, value in inner.items() if key != "workload"}
        inner = _merged(top, inner["workload"], name)
    for kind, keys in _OTHER_BENCHMARKS.items():
        if any(key in inner for key in keys):
            raise SpecError(
                f"{name}: a configuration of {kind}", "only training and checkpoints are imported"
            )
    if not any(section in inner for section in SECTIONS):
        raise SpecError(
            f"{name}: not a configuration of DLIO", "it needs a section such as dataset, reader or train"
        )
    if "data_reader" in inner:  # DLIO's own name of the section, which takes precedence over `reader`
        rest = {key: value for key, value in inner.items() if key not in ("data_reader", "reader")}
        inner = {**rest, "reader": inner["data_reader"]}
    return inner


def _merged(top: Mapping[str, Any], inner: Mapping[str, Any], name: str, prefix: str = "") -> dict[str, Any]:
    """Return the keys of both tables, table by table. Raises SpecError if they differ in a value."""
    merged = {**top, **inner}
    for key in top.keys() & inner.keys():
        above, below = top[key], inner[key]
        if isinstance(above, Mapping) and isinstance(below, Mapping):
            merged[key] = _merged(above, below, name, f"{prefix}{key}.")
        elif above != below:
            what = (
                f"{name}: {prefix}{key} has two values, {str(above)[:40]} and {str(below)[:40]} (in workload)"
            )
            raise SpecError(what, "remove the one that is not meant")
    return merged
