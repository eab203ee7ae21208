"""Read YAML and JSON from outside as plain values, within limits. Nothing is executed.

Values are None, booleans, finite numbers, text, lists, and tables whose keys are text. Passwords and keys are
masked here, so that nothing that is made of these values can show them.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import yaml

from emulator.errors import SpecError, storage_errors
from emulator.files import DOCUMENT_BYTES, read_document
from emulator.text import MASK, masked, names_secret

YAML_BYTES = 64 * 1024
"""Largest YAML file in bytes. A configuration has a few kB; PyYAML takes a second for 100 kB."""
DEPTH = 32
"""Deepest nesting of tables and lists."""
NUMBER = 1e18
"""Largest number; no count, size in bytes or time in seconds is larger."""
TEXT = 200_000
"""Most characters of one text, which may be a copy of /proc/cpuinfo."""
_VALUE_ERRORS = (ValueError, OverflowError, LookupError, TypeError, AttributeError)
"""Errors that PyYAML's converters of dates and numbers raise."""
_NO_TEXT = re.compile("[\0\ud800-\udfff]")


class _PlainLoader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """A loader that refuses aliases, which can multiply without limit, and keys that appear twice."""

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError(f"the alias *{self.peek_event().anchor[:40]}: aliases are not read")
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[str] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                _add_once(keys, key.value)
        table: dict[Any, Any] = super().construct_mapping(node, deep)
        return table


def read_yaml(path: Path) -> Any:
    """Return the one document in a YAML file. Raises SpecError, StorageError."""
    return parse_yaml(_read_text(path, YAML_BYTES), str(path))


def read_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises SpecError, StorageError."""
    return parse_json(_read_text(path, DOCUMENT_BYTES), str(path))


def parse_yaml(text: str, name: str) -> Any:
    """Return the one document in `text`; errors begin with `name`. Raises SpecError."""
    try:
        loader = _PlainLoader(text)
        value = loader.get_single_data()
    except (yaml.YAMLError, RecursionError, *_VALUE_ERRORS) as error:
        raise SpecError(f"{name}: not valid YAML", _summary(error)) from None
    return _checked(value, name)


def parse_json(text: str, name: str) -> Any:
    """Return the value in `text`; errors begin with `name`. Raises SpecError."""

    def without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        keys: set[str] = set()
        for key, _ in pairs:
            _add_once(keys, key)
        return dict(pairs)

    try:
        value = json.loads(text, object_pairs_hook=without_duplicates, parse_constant=_constant)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{name}: not valid JSON", _summary(error)) from None
    return _checked(value, name)


def yaml_text(value: Any) -> str:
    text: str = yaml.safe_dump(value, sort_keys=False, allow_unicode=True)
    return text


def _add_once(keys: set[str], key: str) -> None:
    if key in keys:  # the second value would hide the first
        raise ValueError(f"the key {key[:40]!r} appears twice")
    keys.add(key)


def _read_text(path: Path, limit: int) -> str:
    """Return the text of a regular file of at most `limit` bytes. Raises SpecError, StorageError."""
    with storage_errors("cannot read the file", path):
        data = read_document(path, limit)
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise SpecError(f"{path}: not UTF-8 text") from None


def _constant(word: str) -> float | None:
    """Return None for NaN, which DLIO writes for the mean of no checkpoints; infinity is refused later."""
    return None if word == "NaN" else float(word)


def _summary(error: Exception) -> str:
    """Return the problem and its place. PyYAML's own text quotes the file, which may hold a key."""
    problem = getattr(error, "problem", None) or str(error)
    mark = getattr(error, "problem_mark", None)
    place = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
    return (" ".join(problem.split()) or type(error).__name__)[:160] + place


def _checked(value: Any, name: str, depth: int = 0) -> Any:
    """Check every value in `value`, and return it with text keys. Raises SpecError."""
    if depth > DEPTH:
        raise SpecError(f"{name}: nested too deeply", f"at most {DEPTH} levels are read")
    if isinstance(value, list):
        return [_checked(item, name, depth + 1) for item in value]
    if isinstance(value, dict):
        return _checked_table(value, name, depth)
    if why := _why_refused(value):
        raise SpecError(f"{name}: {why}", "only text and numbers are read")
    return masked(value) if isinstance(value, str) else value


def _checked_table(value: dict[Any, Any], name: str, depth: int) -> dict[str, Any]:
    """Check every value in a table, and mask its secrets. Raises SpecError."""
    table: dict[str, Any] = {}
    for key, item in value.items():
        if type(key) not in (str, int):
            raise SpecError(f"{name}: a table with a key that is neither text nor a whole number")
        text = _checked(str(key), name)
        if text in table:
            raise SpecError(f"{name}: a table with the same key as a number and as text")
        checked = _checked(item, name, depth + 1)
        table[text] = MASK if names_secret(text) and checked is not None else checked
    return table


def _why_refused(value: Any) -> str:
    """Return what is wrong with a single value, or an empty text."""
    if value is None or isinstance(value, bool):
        return ""
    if isinstance(value, str):
        if len(value) > TEXT:
            return f"a text of more than {TEXT} characters"
        return "a text with a NUL or an unpaired surrogate" if _NO_TEXT.search(value) else ""
    if isinstance(value, int | float):
        return "" if abs(value) <= NUMBER else f"a number that is not finite, or beyond {NUMBER:g}"
    return f"a value of type {type(value).__name__}"  # a date, a set, bytes
