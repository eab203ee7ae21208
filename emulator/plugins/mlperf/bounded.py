"""Read YAML and JSON that others wrote, within limits on size, depth and expansion. Nothing is executed.

Values are None, booleans, finite numbers, text, lists, and tables whose keys are text.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from emulator.errors import SpecError, StorageError, storage_error

YAML_BYTES = 256 * 1024
"""A configuration has a few kB; PyYAML takes seconds for a megabyte."""
JSON_BYTES = 128 * 1024 * 1024
"""The log of a rank has about 60 bytes a step."""
DEPTH = 32
"""Nesting of tables and lists."""
NODES = 20_000
"""Values of a YAML document, aliases expanded."""
NUMBER = 1e18
"""No count, size in bytes or time in seconds is larger."""
TEXT = 200_000
"""Characters of one text. A copy of /proc/cpuinfo may be one."""


def read_yaml(path: Path) -> Any:
    """Return the one document in a YAML file. Raises SpecError, StorageError."""
    return parse_yaml(_read_text(path, YAML_BYTES), str(path))


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises SpecError, StorageError."""
    return parse_json(_read_text(path, JSON_BYTES), str(path))


def parse_yaml(text: str, name: str) -> Any:
    """Return the one document in `text`; errors begin with `name`. Raises SpecError."""
    try:
        _check_size(text, name)
        value = yaml.safe_load(text)
    except (
        yaml.YAMLError,
        ValueError,
        OverflowError,
        RecursionError,
        LookupError,
        TypeError,
        AttributeError,
    ) as error:
        # PyYAML lets what its converters of dates and numbers raise through as it is.
        raise SpecError(f"{name}: not valid YAML", _summary(error)) from None
    return _checked(value, name)


def parse_json(text: str, name: str) -> Any:
    """Return the value in `text`; errors begin with `name`. Raises SpecError."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table: dict[str, Any] = {}
        for key, value in pairs:
            if key in table:  # the second value would hide the first
                raise ValueError(f"the key {key[:40]!r} appears twice")
            table[key] = value
        return table

    try:
        value = json.loads(text, object_pairs_hook=without_duplicates)
    except RecursionError:
        raise _too_deep(name) from None
    except ValueError as error:
        raise SpecError(f"{name}: not valid JSON", _summary(error)) from None
    return _checked(value, name)


def yaml_text(value: Any) -> str:
    """Return a plain value as YAML."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text


def _read_text(path: Path, limit: int) -> str:
    """Return the text of a regular file of at most `limit` bytes. Raises SpecError, StorageError."""
    try:
        if not path.exists():
            raise StorageError(f"there is no file {path}", "check the path")
        if not path.is_file():
            raise SpecError(f"{path}: not a regular file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise storage_error(error, "cannot read the file") from None
    except ValueError as error:  # a NUL in the path
        raise StorageError(f"cannot read {str(path)!r}", str(error)) from None
    if len(data) > limit:
        raise SpecError(f"{path}: larger than {limit} bytes", "files of MLPerf and DLIO are smaller")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None


def _summary(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:160]


@dataclass(slots=True)
class _OpenCollection:
    """A table or list that the parser is still inside."""

    anchor: str | None
    before: int
    """Values of the document before it."""
    keys: set[str] | None
    """Keys of a table so far; None for a list."""
    children: int = 0


class _Counter:
    """Counts the values of a YAML document, aliases expanded, and checks its depth and its keys.

    An alias counts as many values as its anchor holds, which is known when the anchor's value has ended. So
    a document whose aliases multiply is refused at the first alias that goes beyond the limit.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._total = 0
        self._anchors: dict[str, int] = {}
        self._open: list[_OpenCollection] = []

    def end(self) -> None:
        """A table or list ends."""
        ended = self._open.pop()
        if ended.anchor is not None:
            self._anchors[ended.anchor] = self._total - ended.before

    def add(self, event: yaml.NodeEvent) -> None:
        """A value begins. Raises SpecError."""
        if self._open:
            self._add_to_parent(self._open[-1], event)
        if isinstance(event, yaml.CollectionStartEvent):
            keys: set[str] | None = set() if isinstance(event, yaml.MappingStartEvent) else None
            self._open.append(_OpenCollection(event.anchor, self._total, keys))
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in self._anchors:
                raise SpecError(f"{self._name}: the alias *{event.anchor[:40]} has no anchor before it")
            self._total += self._anchors[event.anchor]
        elif event.anchor is not None:
            self._anchors[event.anchor] = 1
        self._total += 1
        if len(self._open) > DEPTH:
            raise _too_deep(self._name)
        if self._total > NODES:
            what = f"{self._name}: more than {NODES} values, aliases expanded"
            raise SpecError(what, "this is no configuration")

    def _add_to_parent(self, parent: _OpenCollection, event: yaml.NodeEvent) -> None:
        parent.children += 1
        is_key = parent.keys is not None and parent.children % 2 == 1
        if parent.keys is not None and is_key and isinstance(event, yaml.ScalarEvent):
            if event.value in parent.keys:
                raise SpecError(f"{self._name}: the key {event.value[:40]!r} appears twice")
            parent.keys.add(event.value)


def _check_size(text: str, name: str) -> None:
    """Refuse a YAML document that is too deep, too large or has a key twice, before it is built.

    Raises SpecError, yaml.YAMLError.
    """
    counter = _Counter(name)
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        if isinstance(event, yaml.CollectionEndEvent):
            counter.end()
        elif isinstance(event, yaml.NodeEvent):
            counter.add(event)


def _too_deep(name: str) -> SpecError:
    return SpecError(f"{name}: nested too deeply", f"at most {DEPTH} levels are read")


def _checked(value: Any, name: str, depth: int = 0) -> Any:
    """Check every number and text of `value`, and return it with text keys. Raises SpecError."""
    if depth > DEPTH:
        raise _too_deep(name)
    if isinstance(value, dict):
        if any(not isinstance(key, str | int) or isinstance(key, bool) for key in value):
            raise SpecError(f"{name}: a table with a key that is neither text nor a whole number")
        table = {_checked(str(key), name): _checked(item, name, depth + 1) for key, item in value.items()}
        if len(table) != len(value):
            raise SpecError(f"{name}: a table with the same key as a number and as text")
        return table
    if isinstance(value, list):
        return [_checked(item, name, depth + 1) for item in value]
    if value is not None and type(value) not in (str, int, float, bool):  # a date, a set, bytes
        raise SpecError(f"{name}: a value of type {type(value).__name__}", "only text and numbers are read")
    if isinstance(value, str):
        _check_text(value, name)
    elif value is not None:
        _check_number(value, name)
    return value


def _check_text(value: str, name: str) -> None:
    if len(value) > TEXT:
        raise SpecError(f"{name}: a text of more than {TEXT} characters")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise SpecError(f"{name}: a text with a NUL or an unpaired surrogate")


def _check_number(value: float, name: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise SpecError(f"{name}: a number that is not finite (NaN or infinity)")
    if abs(value) > NUMBER:
        raise SpecError(f"{name}: a number beyond {NUMBER:g}", "no size, count or time is that large")
