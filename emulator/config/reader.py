"""From a TOML table to a frozen dataclass, driven by the fields of the dataclass.

Unknown keys, missing keys and wrong types are refused with file, line and the nearest known key.
Fields declared as `Bytes`, `Rate` or `Seconds` also take text with a unit ("4MiB", "45GB/s", "2ms").
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from emulator.errors import SpecError, storage_error
from emulator.units import parse_bytes, parse_rate, parse_seconds

Bytes = Annotated[int, parse_bytes]
"""Bytes; in TOML a number or text such as "4MiB"."""

Rate = Annotated[float, parse_rate]
"""Bytes per second; in TOML a number or text such as "45GB/s" or "200Gb/s"."""

Seconds = Annotated[float, parse_seconds]
"""Seconds; in TOML a number or text such as "2ms"."""

Spec = TypeVar("Spec")
Table = Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """Where a table came from, to name file and line in errors."""

    name: str
    text: str = ""
    settings: tuple[str, ...] = ()
    """The `--set` options laid over the table."""

    def at(self, path: Sequence[str]) -> str:
        """`--set loader.workers=x` or `workloads/x.toml, line 12` for the key at `path`."""
        for setting in self.settings:
            if setting.partition("=")[0].strip() == ".".join(path):
                return f"--set {setting}"
        *section, key = path
        current: list[str] = []
        for number, line in enumerate(self.text.splitlines(), start=1):
            header = re.match(r"\s*\[+\s*([^\]]+?)\s*\]", line)
            if header:
                current = [part.strip().strip("\"'") for part in header[1].split(".")]
                if current == list(path):
                    return f"{self.name}, line {number}"
            elif current == section and re.match(rf"\s*[\"']?{re.escape(key)}[\"']?\s*=", line):
                return f"{self.name}, line {number}"
        return self.name


def read_table(path: Path) -> tuple[dict[str, Any], Source]:
    """The TOML file at `path` as a table and its source. Raises SpecError, StorageError."""
    try:
        text = path.read_text(encoding="utf-8")
        return tomllib.loads(text), Source(str(path), text)
    except OSError as error:
        raise storage_error(error, "cannot read the file") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not UTF-8 text", "it should be a TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML", str(error)) from None


def override(table: Table, settings: Sequence[str]) -> dict[str, Any]:
    """`table` with every `section.key=value` of `settings` (--set) laid over it. Raises SpecError."""
    result = {key: dict(value) if isinstance(value, Mapping) else value for key, value in table.items()}
    for setting in settings:
        name, equals, text = setting.partition("=")
        path = [part.strip() for part in name.split(".")]
        if not equals or not all(path):
            raise SpecError(f"--set {setting!r} is not KEY=VALUE", "for example --set loader.workers=8")
        place = result
        for part in path[:-1]:
            inner = place.get(part, {})
            place[part] = dict(inner) if isinstance(inner, Mapping) else {}
            place = place[part]
        place[path[-1]] = _value(text.strip())
    return result


def _value(text: str) -> Any:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text  # a bare word is a string, as a shell user expects


def build(cls: type[Spec], table: Table, source: Source, path: tuple[str, ...] = ()) -> Spec:
    """An instance of the dataclass `cls` from `table`. Raises SpecError."""
    fields = {field.name: field for field in dataclasses.fields(cls)}  # type: ignore[arg-type]
    hints = typing.get_type_hints(cls, include_extras=True)
    for key in table:
        if key not in fields:
            raise SpecError(
                f"{source.at((*path, key))}: unknown key {_dotted(path, key)!r}", _nearest(key, fields, path)
            )
    values: dict[str, Any] = {}
    for name, field in fields.items():
        if name in table:
            values[name] = _convert(hints[name], table[name], source, (*path, name))
        elif field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING:
            raise SpecError(f"{source.name}: the key {_dotted(path, name)!r} is missing", "add it")
    try:
        return cls(**values)
    except SpecError as error:
        key = error.what.split(" ", 1)[0]
        where = source.at((*path, key)) if key in fields else source.name
        raise SpecError(f"{where}: {_dotted(path, error.what)}", error.hint) from None


def _dotted(path: Sequence[str], name: str) -> str:
    return ".".join((*path, name))


def _nearest(key: str, known: Mapping[str, object], path: Sequence[str]) -> str:
    close = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {_dotted(path, close[0])!r}?"
    return "known keys are " + ", ".join(_dotted(path, name) for name in known)


def _convert(hint: Any, value: Any, source: Source, path: tuple[str, ...]) -> Any:
    """`value` as the type `hint`. Raises SpecError."""
    origin = typing.get_origin(hint)
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise _wrong(source, path, "a table", value)
        return build(hint, value, source, path)
    if origin is Annotated:
        return _with_unit(typing.get_args(hint), value, source, path)
    if origin in (typing.Union, types.UnionType):
        options = [option for option in typing.get_args(hint) if option is not type(None)]
        return _convert(options[0], value, source, path)
    if origin is Literal:
        if value not in typing.get_args(hint):
            choices = ", ".join(repr(choice) for choice in typing.get_args(hint))
            raise _wrong(source, path, f"one of {choices}", value)
        return value
    if origin is tuple:
        if not isinstance(value, list):
            raise _wrong(source, path, "a list", value)
        inner = typing.get_args(hint)
        kinds = [inner[0]] * len(value) if inner[-1] is Ellipsis else list(inner)
        if len(kinds) != len(value):
            raise _wrong(source, path, f"a list of {len(kinds)}", value)
        return tuple(_convert(kind, item, source, path) for kind, item in zip(kinds, value, strict=True))
    if origin in (dict, Mapping) or getattr(origin, "__name__", "") == "Mapping":
        if not isinstance(value, Mapping):
            raise _wrong(source, path, "a table", value)
        kind = typing.get_args(hint)[1]
        return {key: _convert(kind, item, source, (*path, key)) for key, item in value.items()}
    return _scalar(hint, value, source, path)


def _with_unit(args: tuple[Any, ...], value: Any, source: Source, path: tuple[str, ...]) -> Any:
    parse: Callable[[Any], Any] = args[1]
    if isinstance(value, str):
        try:
            return parse(value)
        except SpecError as error:
            raise SpecError(
                f"{source.at(path)}: {_dotted(path[:-1], path[-1])} = {error.what}", error.hint
            ) from None
    return _scalar(args[0], value, source, path)


def _scalar(hint: Any, value: Any, source: Source, path: tuple[str, ...]) -> Any:
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if hint is Any or (isinstance(value, hint) and not (isinstance(value, bool) and hint is not bool)):
        return value
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    raise _wrong(source, path, names.get(hint, str(hint)), value)


def _wrong(source: Source, path: tuple[str, ...], expected: str, value: Any) -> SpecError:
    return SpecError(f"{source.at(path)}: {'.'.join(path)} must be {expected}, not {value!r}")


# ---- Checks that specs share. A message begins with the field's name, so that its line can be named.


def at_least(name: str, value: float, minimum: float) -> None:
    """Refuse NaN, infinity and anything below `minimum`. Raises SpecError."""
    if not math.isfinite(value) or value < minimum:
        raise SpecError(f"{name} must be at least {minimum:g}, not {value:g}")


def positive(name: str, value: float) -> None:
    """Refuse NaN, infinity, zero and below. Raises SpecError."""
    if not math.isfinite(value) or value <= 0:
        raise SpecError(f"{name} must be above 0, not {value:g}")


def share(name: str, value: float) -> None:
    """Refuse anything outside (0, 1]. Raises SpecError."""
    if not 0 < value <= 1:
        raise SpecError(f"{name} must be above 0 and at most 1, not {value:g}")


# ---- From dataclasses and mappings to TOML text: what spec.toml reads back.


_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(spec: Any, digits: int = 17) -> str:
    """`spec`, a dataclass or a mapping, as TOML; numbers keep so many digits (17: all). None is left out."""
    return "\n".join(_lines(spec, (), digits)) + "\n"


def _lines(spec: Any, path: Sequence[str], digits: int) -> list[str]:
    """The plain keys of a dataclass or mapping first, then its tables."""
    items = spec if isinstance(spec, Mapping) else {one.name: getattr(spec, one.name) for one in fields(spec)}
    plain: list[str] = []
    tables: list[str] = []
    for key, value in items.items():
        inner = (*path, _key(key))
        if isinstance(value, Mapping) or is_dataclass(value):
            tables += ["", f"[{'.'.join(inner)}]", *_lines(value, inner, digits)]
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            for one in value:
                tables += ["", f"[[{'.'.join(inner)}]]", *_lines(one, inner, digits)]
        elif value is not None:
            plain.append(f"{inner[-1]} = {_value_toml_text(value, digits)}")
    return plain + tables


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value_toml_text(value: Any, digits: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(f"{value:.{digits}g}"))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    parts = [_value_toml_text(item, digits) for item in value]
    if len(parts) <= 10:
        return f"[{', '.join(parts)}]"
    rows = [", ".join(parts[start : start + 10]) for start in range(0, len(parts), 10)]
    return "[\n    " + ",\n    ".join(rows) + ",\n]"
