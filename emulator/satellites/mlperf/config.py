"""Hydra's overrides: `++workload.reader.batch_size=8`, as on DLIO's command line and in overrides.yaml.

Read are assignments of a plain value or list to a dotted key, with or without `+` or `++` and the leading
`workload.`, and deletions (`~key`). Groups (`workload=unet3d_h100`) choose a file: their choice is kept,
the file is the caller's. Interpolations, functions and sweeps are refused: nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import SpecError
from emulator.satellites.mlperf.bounded import parse_yaml, read_yaml

_KEY = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*(\.[A-Za-z_][A-Za-z0-9_-]*)*")
_OVERRIDES = 1000


@dataclass(frozen=True, slots=True)
class Override:
    """One assignment or deletion."""

    path: tuple[str, ...]
    """Keys from the top, without the leading `workload`."""
    value: Any
    deletes: bool = False


@dataclass(frozen=True, slots=True)
class Overrides:
    """What a list of overrides says."""

    changes: tuple[Override, ...] = ()
    workload: str = ""
    """Choice of the group `workload`: the name of the YAML file that the others are laid over."""
    others: tuple[str, ...] = ()
    """Of Hydra itself or of other groups: no part of a workload."""


def read_overrides(path: Path) -> list[str]:
    """The list in an overrides.yaml. Raises SpecError, StorageError."""
    listed = read_yaml(path)
    if listed is None:
        return []
    if not isinstance(listed, list) or not all(isinstance(item, str) for item in listed):
        raise SpecError(f"{path}: no list of overrides", "lines like - ++workload.reader.batch_size=8")
    return listed


def parse_overrides(texts: Sequence[str]) -> Overrides:
    """`texts` in their order. Raises SpecError."""
    if len(texts) > _OVERRIDES:
        raise SpecError(f"{len(texts)} overrides are more than {_OVERRIDES}")
    changes: list[Override] = []
    others: list[str] = []
    workload = ""
    for text in texts:
        if text.lstrip("+~").startswith("hydra"):
            others.append(text)
            continue
        found = _parse(text)
        if found.path == ("workload",):
            workload = str(found.value)
        elif len(found.path) < 2 and isinstance(found.value, str) and found.path[0] not in _TOP:
            others.append(text)
        else:
            changes.append(found)
    return Overrides(tuple(changes), workload, tuple(others))


_TOP = ("model", "framework")
"""Keys at the top of a workload whose value is no table."""


def _parse(text: str) -> Override:
    """One override. Raises SpecError."""
    body = text.lstrip("+")
    deletes = body.startswith("~")
    name, equals, value = body.removeprefix("~").partition("=")
    if not _KEY.fullmatch(name) or (not equals and not deletes):
        raise SpecError(f"the override {text[:80]!r} is not KEY=VALUE", "for example reader.batch_size=8")
    path = tuple(name.split("."))
    if len(path) > 1 and path[0] == "workload":
        path = path[1:]
    if deletes:
        return Override(path, None, True)
    if "${" in value or value.strip().startswith(("&", "*", "!", "|", ">")):
        raise SpecError(f"the override {text[:80]!r} is no plain value", "interpolations are not evaluated")
    return Override(path, parse_yaml(value, f"the override {text[:80]!r}"))


def apply(config: Mapping[str, Any], changes: Sequence[Override]) -> dict[str, Any]:
    """`config` with `changes` laid over it; `config` itself is left as it is. Raises SpecError."""
    result = dict(config)
    for change in changes:
        place = result
        for number, key in enumerate(change.path[:-1], 1):
            inner = place.get(key)
            if inner is not None and not isinstance(inner, Mapping):
                raise SpecError(f"{'.'.join(change.path[:number])} is no table: it has no keys to override")
            place[key] = dict(inner or {})
            place = place[key]
        if change.deletes:
            place.pop(change.path[-1], None)
        else:
            place[change.path[-1]] = change.value
    return result


# ---- A configuration of DLIO: from YAML and overrides to one table, and the values in it.


_NUMBER = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)([eE][-+]?\d+)?")
_NAME = re.compile(r"[A-Za-z0-9_-]{1,80}")


@dataclass(frozen=True, slots=True)
class Config:
    """What DLIO would run with."""

    name: str
    """File it came from, for errors."""
    table: Mapping[str, Any]
    """The sections model, dataset, reader, train ..."""
    choice: str = ""
    """Name of the workload that was chosen, as unet3d_h100: the file's, or an override's."""
    others: tuple[str, ...] = ()
    """Overrides that are of Hydra, not of the workload."""

    def leaves(self) -> Iterator[tuple[str, Any]]:
        """Every dotted key with its value; lists and empty tables are values."""
        yield from _leaves(self.table, "")

    def number(self, key: str, default: float | None = None) -> float | None:
        """The number under a dotted key, or under its `mean`; `default` when it is not there.

        Raises SpecError when it is no number or below 0.
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

    def whole(self, key: str, default: int | None = None) -> int | None:
        """As `number`, rounded: record lengths are stated with fractions. Raises SpecError."""
        value = self.number(key)
        return default if value is None else round(value)

    def text(self, key: str, default: str = "") -> str:
        """The text under a dotted key. Raises SpecError."""
        value = self.at(key)
        if value is None:
            return default
        if not isinstance(value, str | int | float) or isinstance(value, bool) or len(str(value)) > 200:
            raise SpecError(f"{self.name}: {key} must be a short text, not {str(value)[:40]!r}")
        return str(value)

    def model(self, default: str) -> str:
        """The model's name: the value of `model` until MLPerf Storage v0.5, of `model.name` since."""
        return self.text("model.name" if isinstance(self.at("model"), Mapping) else "model", default)

    def at(self, key: str) -> Any:
        """The value under a dotted key; None when it is not there."""
        value: Any = self.table
        for part in key.split("."):
            value = value.get(part) if isinstance(value, Mapping) else None
        return value


def _leaves(table: Mapping[str, Any], inside: str) -> Iterator[tuple[str, Any]]:
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, f"{inside}{key}.")
        else:
            yield f"{inside}{key}", value


SECTIONS = ("dataset", "reader", "data_reader", "train", "workflow", "metric", "model", "checkpoint")
"""At least one of them makes a table a workload."""


def read_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """The configuration in a YAML file, with Hydra's overrides laid over it.

    The file may be a workload's (unet3d_h100.yaml), a configuration as Hydra saved it (with the workload
    under `workload`), or the config.yaml of a folder with `workload/NAME.yaml` beside it. Raises SpecError,
    StorageError.
    """
    parsed = parse_overrides(overrides)
    table = read_yaml(path)
    if not isinstance(table, Mapping):
        table = {}
    if "defaults" in table and "workload" not in table:
        chosen = _chosen(path, table["defaults"], parsed.workload)
        return read_config(chosen, overrides)
    inner = apply(workload_table(table, str(path)), parsed.changes)
    return Config(str(path), inner, parsed.workload or path.stem, parsed.others)


def workload_table(table: Any, name: str) -> Mapping[str, Any]:
    """The workload in a configuration, which may lie under `workload`. Raises SpecError."""
    inner = table.get("workload", table) if isinstance(table, Mapping) else None
    if not isinstance(inner, Mapping) or not any(section in inner for section in SECTIONS):
        raise SpecError(f"{name}: no configuration of DLIO", "it should have sections dataset, reader, train")
    if "data_reader" in inner:  # the name that DLIO reads first
        rest = {key: value for key, value in inner.items() if key not in ("data_reader", "reader")}
        inner = {**rest, "reader": inner["data_reader"]}
    return inner


def _chosen(path: Path, defaults: Any, choice: str) -> Path:
    """The file of the workload that Hydra would choose: never outside of the folder. Raises SpecError."""
    listed = [item.get("workload") for item in defaults if isinstance(item, Mapping)] if defaults else []
    names = [choice] if choice else [name for name in listed if isinstance(name, str)]
    if len(names) != 1:
        raise SpecError(f"{path} chooses no workload", "add --override workload=NAME, or give its own file")
    if not _NAME.fullmatch(names[0]):
        raise SpecError(f"{path}: {names[0][:80]!r} is no name of a workload")
    return path.parent / "workload" / f"{names[0]}.yaml"
