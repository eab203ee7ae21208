"""Hydra's overrides: `++workload.reader.batch_size=8`, as on DLIO's command line and in overrides.yaml.

Read are assignments of a plain value or list to a dotted key, with or without `+` or `++` and the leading
`workload.`, and deletions (`~key`). Groups (`workload=unet3d_h100`) choose a file: their choice is kept,
the file is the caller's. Interpolations, functions and sweeps are refused: nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from emulator.errors import SpecError
from emulator.mlperf.bounded import parse_yaml, read_yaml

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
