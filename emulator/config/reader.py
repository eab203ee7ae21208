"""Read TOML and JSON into frozen dataclasses, and write dataclasses as both.

A dataclass is the schema. Unknown keys, missing keys and wrong types are refused, naming the file, the line
of TOML, the key and the nearest known key. Ranges are checked by `__post_init__`. Fields declared as `Bytes`,
`Rate` or `Seconds` also take text with a unit ("4MiB", "45GB/s", "2ms").

Neither format can name a class, and nothing in a file is executed. JSON has no infinity and no NaN: a float
may be the text "Infinity", "-Infinity" or "NaN", so that every JSON reader can read run.json.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, is_dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, NoReturn, TypeVar

import tomli_w

from emulator.errors import SpecError, storage_errors
from emulator.files import read_document
from emulator.units import parse_bytes, parse_rate, parse_seconds

Bytes = Annotated[int, parse_bytes]
"""Bytes; in a file a number or text such as "4MiB"."""

Rate = Annotated[float, parse_rate]
"""Bytes per second; in a file a number or text such as "45GB/s" or "200Gb/s"."""

Seconds = Annotated[float, parse_seconds]
"""Seconds; in a file a number or text such as "2ms"."""

Spec = TypeVar("Spec")
Table = Mapping[str, Any]

KeyPath = tuple[str, ...]
"""Position of a value: keys, and "[3]" for the fourth element of a list."""

_TOML_KEY = r"""(?:"[^"]*"|'[^']*'|[\w-]+)"""
_TOML_NAME = rf"{_TOML_KEY}(?:\s*\.\s*{_TOML_KEY})*"
_TOML_LINE = re.compile(rf"\s*(?:(?P<table>\[\[?)\s*(?P<header>{_TOML_NAME})\s*\]|(?P<key>{_TOML_NAME})\s*=)")
_NON_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}
_NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
_LARGEST = 2**63 - 1
TOML_BYTES = 1 << 20
"""Largest TOML file in bytes: the parser takes a second for it."""


@dataclass(frozen=True, slots=True)
class Source:
    """The origin of plain data, named in errors."""

    name: str = ""
    """The file; empty: errors name the key alone."""
    text: str = ""
    """TOML, to find lines in."""
    settings: tuple[str, ...] = ()
    """The `--set` options laid over the table."""

    def at(self, path: KeyPath) -> str:
        """Return the origin of a key: `--set loader.workers=x` or `workloads/x.toml, line 12`."""
        settings = {
            tuple(part.strip() for part in setting.partition("=")[0].split(".")): f"--set {setting}"
            for setting in self.settings
        }
        above = (setting for key, setting in settings.items() if path[: len(key)] == key)
        if setting := next(above, ""):
            return setting
        nearest, line = 0, 0
        for number, place in self._places():
            if nearest < len(place) and path[: len(place)] == place:
                nearest, line = len(place), number
        if nearest < len(path):  # perhaps a table that only a setting has made
            below = (setting for key, setting in settings.items() if key[: len(path)] == path)
            if setting := next(below, ""):
                return setting
        return f"{self.name}, line {line}" if line else self.name

    def _places(self) -> Iterator[tuple[int, KeyPath]]:
        """Yield line number and path of every key and header of the TOML text."""
        section: KeyPath = ()
        last: dict[KeyPath, int] = {}  # number of the last element of each array of tables
        for number, line in enumerate(self.text.splitlines(), start=1):
            match = _TOML_LINE.match(line)
            if match is None:
                continue
            name = match["header"] or match["key"]
            keys = [part.strip("\"'") for part in re.findall(_TOML_KEY, name)]
            if match["key"]:
                yield number, (*section, *keys)
                continue
            section = ()
            for key in keys[:-1]:
                section += (key,)
                section += (f"[{last[section]}]",) if section in last else ()
            section += (keys[-1],)
            if match["table"] == "[[":
                last[section] = last.get(section, -1) + 1
                section += (f"[{last[section]}]",)
            yield number, section


def read_toml(path: Path, settings: Sequence[str] = ()) -> tuple[dict[str, Any], Source]:
    """Read the TOML file at `path` with `settings` (--set) applied; return the table and its source.

    Raises SpecError, StorageError.
    """
    with storage_errors("cannot read the file", path):
        raw = read_document(path, TOML_BYTES, plain=False)
    try:
        text = raw.decode()
        table = tomllib.loads(text)
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", "it should be a TOML file") from None
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not valid TOML", str(error)) from None
    return override(table, settings), Source(str(path), text, tuple(settings))


def read_json(path: Path) -> Any:
    """Read the JSON file at `path` as plain data. Raises SpecError, StorageError."""

    def finite(text: str) -> float:
        number = float(text)
        if not math.isfinite(number):
            raise ValueError(f"{text} is no number of JSON, or too large")
        return number

    with storage_errors("cannot read the file", path):
        raw = read_document(path)
    try:
        return json.loads(raw, parse_float=finite, parse_constant=finite)
    except (ValueError, RecursionError) as error:
        raise SpecError(f"{path} is not valid JSON ({error})", "the file is damaged") from None


def override(table: Table, settings: Sequence[str]) -> dict[str, Any]:
    """Return `table` with every `section.key=value` of `settings` (--set) applied. Raises SpecError."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for setting in settings:
        name, equals, text = setting.partition("=")
        path = [part.strip() for part in name.split(".")]
        if not equals or not all(path):
            raise SpecError(f"--set {setting!r} is not KEY=VALUE", "for example --set loader.workers=8")
        section = result
        for part in path[:-1]:
            inner = section.get(part, {})
            section[part] = dict(inner) if isinstance(inner, Mapping) else {}
            section = section[part]
        try:
            section[path[-1]] = tomllib.loads(f"value = {text.strip()}")["value"]
        except (ValueError, RecursionError):
            section[path[-1]] = text.strip()  # a bare word is a string, as a shell user expects
    return result


def build(wanted: type[Spec], value: Any, source: Source = Source(), path: KeyPath = ()) -> Spec:
    """Build the dataclass `wanted` from `value`, plain data found in `source` at `path`. Raises SpecError.

    Parts of `value` that are dataclasses already are taken as they are.
    """
    found: Spec = _Reader(source).dataclass(wanted, value, path)
    return found


@cache
def _hints(wanted: type) -> dict[str, Any]:
    return typing.get_type_hints(wanted, include_extras=True)


@dataclass(frozen=True, slots=True)
class _Reader:
    source: Source

    def dataclass(self, wanted: type, value: Any, path: KeyPath) -> Any:
        if isinstance(value, wanted):
            return value
        if not isinstance(value, Mapping):
            self._wrong(path, "a table", value)
        fields = {field.name: field for field in dataclasses.fields(wanted)}
        for key in value:
            if key not in fields:
                self._unknown((*path, str(key)), list(fields))
        values = {}
        for name, field in fields.items():
            if name in value:
                values[name] = self.read(_hints(wanted)[name], value[name], (*path, name))
            elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
                self._refuse(path, f"the key {_dotted((*path, name))!r} is missing")
        try:
            return wanted(**values)
        except SpecError as error:
            key = error.what.split(" ", 1)[0]  # messages of __post_init__ begin with the field's name
            self._refuse((*path, key) if key in fields else path, _dotted((*path, error.what)), error.hint)

    def _unknown(self, path: KeyPath, fields: list[str]) -> NoReturn:
        *table, key = path
        close = difflib.get_close_matches(key, fields, n=1, cutoff=0.5)
        hint = "known keys are " + ", ".join(_dotted((*table, name)) for name in fields)
        if close:
            hint = f"did you mean {_dotted((*table, close[0]))!r}?"
        self._refuse(path, f"unknown key {_dotted(path)!r}", hint)

    def facts(self, wanted: Any, value: Any, path: KeyPath) -> dict[str, Any]:
        """Return the table `value` with the types of the TypedDict `wanted`; other keys stay as they are."""
        if not isinstance(value, Mapping):
            self._wrong(path, "a table", value)
        for key in sorted(wanted.__required_keys__ - value.keys()):
            self._refuse(path, f"the key {_dotted((*path, key))!r} is missing")
        hints = _hints(wanted)
        return {
            key: self.read(hints[key], item, (*path, key)) if key in hints else item
            for key, item in value.items()
        }

    def read(self, hint: Any, value: Any, path: KeyPath) -> Any:
        """Return `value` as the type `hint`. Raises SpecError."""
        if hint is Any:
            return value
        if typing.is_typeddict(hint):
            return self.facts(hint, value, path)
        if isinstance(hint, type) and is_dataclass(hint):
            return self.dataclass(hint, value, path)
        origin, arguments = typing.get_origin(hint), typing.get_args(hint)
        if origin is None:
            return self._scalar(hint, value, path)
        if origin is Annotated:
            return self._annotated(arguments[0], arguments[1], value, path)
        if origin is Literal:
            if value not in arguments:
                self._wrong(path, "one of " + ", ".join(map(repr, arguments)), value)
            return value
        if origin is tuple:
            return self._list(arguments, value, path)
        if origin in (typing.Union, types.UnionType):  # the only union is `X | None`
            (kind,) = set(arguments) - {types.NoneType}
            return None if value is None else self.read(kind, value, path)
        if not isinstance(value, Mapping):
            self._wrong(path, "a table", value)
        return {key: self.read(arguments[1], item, (*path, key)) for key, item in value.items()}

    def _annotated(self, kind: Any, note: Any, value: Any, path: KeyPath) -> Any:
        """Return `value` as `kind`: text parsed by `note`, or a table with the types of `note`."""
        if typing.is_typeddict(note):
            return self.facts(note, value, path)
        if isinstance(value, str) and value not in _NON_FINITE:
            try:
                value = note(value)
            except SpecError as error:
                self._refuse(path, f"{_dotted(path)} = {error.what}", error.hint)
        return self.read(kind, value, path)

    def _list(self, kinds: Sequence[Any], value: Any, path: KeyPath) -> tuple[Any, ...]:
        if not isinstance(value, list | tuple):
            self._wrong(path, "a list", value)
        if kinds[-1] is Ellipsis:
            kinds = [kinds[0]] * len(value)
        if len(kinds) != len(value):
            self._wrong(path, f"a list of {len(kinds)}", value)
        return tuple(
            self.read(kind, item, (*path, f"[{number}]"))
            for number, (kind, item) in enumerate(zip(kinds, value, strict=True))
        )

    def _scalar(self, hint: type, value: Any, path: KeyPath) -> Any:
        if hint is float and isinstance(value, str):
            value = _NON_FINITE.get(value, value)
        elif hint is float and type(value) is int:
            with suppress(OverflowError):
                value = float(value)
        elif hint is int and isinstance(value, int) and abs(value) > _LARGEST:
            self._wrong(path, "a whole number of at most 64 bits", value)
        # To Python, True is a whole number.
        if not isinstance(value, hint) or (isinstance(value, bool) and hint is not bool):
            self._wrong(path, _NAMES.get(hint, str(hint)), value)
        return value

    def _wrong(self, path: KeyPath, expected: str, value: Any) -> NoReturn:
        shown = repr(value)
        shown = shown if len(shown) <= 60 else shown[:57] + "..."
        self._refuse(path, f"{_dotted(path) or 'the whole'} must be {expected}, not {shown}")

    def _refuse(self, path: KeyPath, what: str, hint: str = "") -> NoReturn:
        where = self.source.at(path)
        raise SpecError(f"{where}: {what}" if where else what, hint) from None


def _dotted(path: KeyPath) -> str:
    return ".".join(path).replace(".[", "[")


# Checks for __post_init__. A message begins with the field's name, so that its line can be named.


def at_least(minimum: float, spec: object, *fields: str) -> None:
    """Refuse NaN, infinity and values below `minimum`; None is let through. Raises SpecError."""
    for name in fields:
        value = getattr(spec, name)
        if value is not None and (not math.isfinite(value) or value < minimum):
            raise SpecError(f"{name} must be at least {minimum:g}, not {value:g}")


def positive(spec: object, *fields: str) -> None:
    """Refuse NaN, infinity, zero and below; None is let through. Raises SpecError."""
    for name in fields:
        value = getattr(spec, name)
        if value is not None and (not math.isfinite(value) or value <= 0):
            raise SpecError(f"{name} must be above 0, not {value:g}")


def share(name: str, value: float, most: float = 1) -> None:
    """Refuse anything outside (0, most]. Raises SpecError."""
    if not 0 < value <= most:
        raise SpecError(f"{name} must be above 0 and at most {most:g}, not {value:g}")


def to_plain(value: Any, named: bool = False) -> Any:
    """Return `value` as dicts, lists, text, numbers, booleans and None. Raises TypeError on anything else.

    Numbers that are not finite stay as they are; with `named` they are the texts that `build` reads back.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _name_of(value) if named and not math.isfinite(value) else float(value)
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, named) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [to_plain(item, named) for item in value]
    if getattr(value, "ndim", None) == 0:
        return to_plain(value.item(), named)  # a numpy scalar
    raise TypeError(f"{type(value).__name__} cannot be written to JSON")


def _name_of(number: float) -> str:
    """Return the text for a number that is not finite."""
    if math.isnan(number):
        return "NaN"
    return "Infinity" if number > 0 else "-Infinity"


def stated(spec: Any) -> dict[str, Any]:
    """Return the fields of a dataclass that are not their defaults, those of dataclasses in it likewise."""
    return {
        field.name: stated(value) if is_dataclass(value) else value
        for field in dataclasses.fields(spec)
        if (value := getattr(spec, field.name)) is not None and value != field.default
    }


def toml_text(spec: Any, digits: int = 17) -> str:
    """Return a dataclass or a mapping as TOML. Numbers keep `digits` digits (17: all); None is left out."""
    return tomli_w.dumps(_without_none(to_plain(spec), digits))


def _without_none(value: Any, digits: int) -> Any:
    """Return plain data as TOML can hold it: without None, and with rounded numbers."""
    if isinstance(value, dict):
        return {key: _without_none(item, digits) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [_without_none(item, digits) for item in value]
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value
