"""YAML and JSON of others, read within bounds: nothing is executed, nothing is expanded without limit.

What comes out is plain: None, booleans, finite numbers, text, lists and tables with text as keys.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
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
"""Tables and lists within each other, at most."""
NODES = 20_000
"""Values of a YAML document, those that aliases repeat counted as often as they stand there."""
NUMBER = 1e18
"""No number that is meant is larger: bytes, samples, seconds."""
TEXT = 200_000
"""Characters of one text: /proc/cpuinfo may be one."""


def read_yaml(path: Path) -> Any:
    """The one document in that file. Raises SpecError, StorageError."""
    return parse_yaml(_text(path, YAML_BYTES), str(path))


def read_json(path: Path) -> Any:
    """The value in that file. Raises SpecError, StorageError."""
    return parse_json(_text(path, JSON_BYTES), str(path))


def parse_yaml(text: str, name: str) -> Any:
    """The one document in `text`; `name` says in errors where it came from. Raises SpecError."""
    try:
        _weigh(yaml.parse(text, Loader=yaml.SafeLoader), name)
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _bad(name, "no YAML that can be read", _said(error)) from None
    except (ValueError, OverflowError, RecursionError, LookupError, TypeError, AttributeError) as error:
        # PyYAML lets what its converters of dates and numbers raise through as it is.
        raise _bad(name, "no YAML that can be read", _said(error)) from None
    return _plain(value, name)


def parse_json(text: str, name: str) -> Any:
    """The value in `text`; `name` says in errors where it came from. Raises SpecError."""
    try:
        value = json.loads(text, object_pairs_hook=_once)
    except RecursionError:
        raise _bad(name, "nested too deeply", f"at most {DEPTH} levels are read") from None
    except ValueError as error:
        raise _bad(name, "no JSON that can be read", _said(error)) from None
    return _plain(value, name)


def yaml_text(value: Any) -> str:
    """A plain value as YAML."""
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text


def _text(path: Path, limit: int) -> str:
    """The file as text. Raises SpecError when it is no regular file, too large or no UTF-8, StorageError."""
    try:
        if not path.exists():
            raise StorageError(f"there is no file {path}", "check the path")
        if not path.is_file():
            raise _bad(str(path), "no regular file")
        with path.open("rb") as file:
            data = file.read(limit + 1)
    except OSError as error:
        raise storage_error(error, "cannot read the file") from None
    except ValueError as error:  # a NUL in the path
        raise StorageError(f"cannot read {str(path)!r}", str(error)) from None
    if len(data) > limit:
        raise _bad(str(path), f"larger than {limit} bytes", "it is none of MLPerf's or DLIO's")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError:
        raise _bad(str(path), "no UTF-8 text") from None


def _bad(name: str, what: str, hint: str = "") -> SpecError:
    return SpecError(f"{name}: {what}", hint)


def _said(error: Exception) -> str:
    return (" ".join(str(error).split()) or type(error).__name__)[:160]


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object; a key that stands there twice would hide a value. Raises ValueError."""
    table: dict[str, Any] = {}
    for key, value in pairs:
        if key in table:
            raise ValueError(f"the key {key[:40]!r} stands there twice")
        table[key] = value
    return table


@dataclass(slots=True)
class _Open:
    """A table or list whose end has not been seen."""

    anchor: str | None
    before: int
    """Weight of the document before it."""
    keys: set[str] | None
    """Of a table: its keys so far."""
    children: int = 0


def _weigh(events: Iterable[yaml.Event], name: str) -> None:
    """Refuse a document before it is built: too deep, a key twice, or too many values with aliases expanded.

    The weight of an anchor is known when its value has ended; a bomb is refused at the alias that would
    burst it. Raises SpecError, yaml.YAMLError.
    """
    anchors: dict[str, int] = {}
    within: list[_Open] = []
    total = 0
    for event in events:
        if isinstance(event, yaml.CollectionEndEvent):
            ended = within.pop()
            if ended.anchor is not None:
                anchors[ended.anchor] = total - ended.before
            continue
        if not isinstance(event, yaml.NodeEvent):
            continue
        _note_key(event, within[-1] if within else None, name)
        if isinstance(event, yaml.CollectionStartEvent):
            keys: set[str] | None = set() if isinstance(event, yaml.MappingStartEvent) else None
            within.append(_Open(event.anchor, total, keys))
        elif isinstance(event, yaml.AliasEvent):
            if event.anchor not in anchors:
                raise _bad(name, f"the alias *{event.anchor[:40]} has no anchor before it")
            total += anchors[event.anchor]
        elif event.anchor is not None:
            anchors[event.anchor] = 1
        total += 1
        if len(within) > DEPTH:
            raise _bad(name, "nested too deeply", f"at most {DEPTH} levels are read")
        if total > NODES:
            raise _bad(name, f"more than {NODES} values, aliases expanded", "it is no configuration")


def _note_key(event: yaml.NodeEvent, within: _Open | None, name: str) -> None:
    """A key that stands in a table twice would hide a value. Raises SpecError."""
    if within is None:
        return
    within.children += 1
    if within.keys is None or within.children % 2 == 0 or not isinstance(event, yaml.ScalarEvent):
        return
    if event.value in within.keys:
        raise _bad(name, f"the key {event.value[:40]!r} stands there twice")
    within.keys.add(event.value)


def _plain(value: Any, name: str, depth: int = 0) -> Any:
    """`value` with every number and text checked. Raises SpecError."""
    if depth > DEPTH:
        raise _bad(name, "nested too deeply", f"at most {DEPTH} levels are read")
    if isinstance(value, dict):
        if any(not isinstance(key, str | int) or isinstance(key, bool) for key in value):
            raise _bad(name, "a table with a key that is neither text nor a whole number")
        table = {_checked(str(key), name): _plain(item, name, depth + 1) for key, item in value.items()}
        if len(table) != len(value):
            raise _bad(name, "a table with a key twice")
        return table
    if isinstance(value, list):
        return [_plain(item, name, depth + 1) for item in value]
    if value is None or isinstance(value, bool):
        return value
    checks: dict[type, Callable[[Any, str], Any]] = {str: _checked, int: _finite, float: _finite}
    if type(value) not in checks:
        raise _bad(name, f"a value of the kind {type(value).__name__}", "only text and numbers are read")
    return checks[type(value)](value, name)


def _finite(value: float, name: str) -> float:
    if isinstance(value, float) and not math.isfinite(value):
        raise _bad(name, "a number that is not finite (NaN or infinity)")
    if abs(value) > NUMBER:
        raise _bad(name, f"a number beyond {NUMBER:g}", "it is no size, count or time")
    return value


def _checked(text: str, name: str) -> str:
    if len(text) > TEXT:
        raise _bad(name, f"a text of more than {TEXT} characters")
    if "\0" in text or any("\ud800" <= letter <= "\udfff" for letter in text):
        raise _bad(name, "a text with a NUL or half a character in it")
    return text
