"""Frozen dataclasses to plain JSON values and strictly back: no classes named by a file, no guessing.

JSON has no infinity and no NaN: a field declared as a float carries them as the strings "Infinity",
"-Infinity" and "NaN", so that run.json stays readable by everyone.
"""

from __future__ import annotations

import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from emulator.errors import SpecError

_NON_FINITE = {"Infinity": math.inf, "-Infinity": -math.inf, "NaN": math.nan}


def _number(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")


def to_plain(value: Any) -> Any:
    """`value` as dicts, lists, strings, numbers, booleans and None. Raises TypeError on anything else."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return _number(float(value))
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: to_plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): to_plain(item) for key, item in value.items()}
    if isinstance(value, Sequence):
        return [to_plain(item) for item in value]
    if hasattr(value, "item") and getattr(value, "ndim", None) == 0:
        return to_plain(value.item())  # a numpy scalar
    raise TypeError(f"{type(value).__name__} cannot be written to JSON")


def from_plain(wanted: Any, value: Any, where: str = "") -> Any:
    """`value` as the type `wanted`, which may be a dataclass. Raises SpecError naming the place."""
    if wanted is Any:
        return value
    if isinstance(wanted, type) and is_dataclass(wanted):
        return _dataclass(wanted, value, where)
    origin, arguments = get_origin(wanted), get_args(wanted)
    if origin in (Union, types.UnionType):
        return None if value is None else from_plain(_present(arguments), value, where)
    if origin is Literal:
        return _expect(value in arguments, value, "one of " + ", ".join(map(str, arguments)), where)
    if origin is tuple:
        return _tuple(arguments, value, where)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(value, dict), value, "an object", where)
        return {key: from_plain(arguments[1], item, f"{where}.{key}") for key, item in value.items()}
    return _scalar(wanted, value, where)


def _present(arguments: tuple[Any, ...]) -> Any:
    """The X of `X | None`; no other union is in a result."""
    (kind,) = [argument for argument in arguments if argument is not types.NoneType]
    return kind


def _expect(holds: bool, value: Any, wanted: str, where: str) -> Any:
    if not holds:
        raise SpecError(f"{where or 'the whole'} is {_short(value)}, but must be {wanted}")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _scalar(wanted: type, value: Any, where: str) -> Any:
    if wanted is float:
        if isinstance(value, str) and value in _NON_FINITE:
            return _NON_FINITE[value]
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return float(_expect(number, value, "a number", where))
    matches = isinstance(value, wanted) and not (wanted is int and isinstance(value, bool))
    return _expect(matches, value, {int: "a whole number", str: "text"}.get(wanted, wanted.__name__), where)


def _tuple(arguments: tuple[Any, ...], value: Any, where: str) -> tuple[Any, ...]:
    _expect(isinstance(value, list), value, "a list", where)
    kinds = [arguments[0]] * len(value) if arguments[-1] is Ellipsis else list(arguments)
    _expect(len(kinds) == len(value), value, f"a list of {len(kinds)}", where)
    return tuple(
        from_plain(kind, item, f"{where}[{number}]")
        for number, (kind, item) in enumerate(zip(kinds, value, strict=True))
    )


@cache
def _hints(wanted: type) -> dict[str, Any]:
    return get_type_hints(wanted)


def _required(field: Field[Any]) -> bool:
    return field.default is MISSING and field.default_factory is MISSING


def _dataclass(wanted: type, value: Any, where: str) -> Any:
    _expect(isinstance(value, dict), value, "an object", where)
    known = {field.name: field for field in fields(wanted)}
    dot = f"{where}." if where else ""
    for name in value:
        if name not in known:
            raise SpecError(f"{dot}{name} is not a field of schema {wanted.__name__}")
    for name, field in known.items():
        if name not in value and _required(field):
            raise SpecError(f"{dot}{name} is missing")
    hints = _hints(wanted)
    return wanted(**{name: from_plain(hints[name], item, f"{dot}{name}") for name, item in value.items()})
