"""From dataclasses and mappings to TOML text: what spec.toml reads back."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

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
            plain.append(f"{inner[-1]} = {_value(value, digits)}")
    return plain + tables


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _string(key)


def _string(text: str) -> str:
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


def _value(value: Any, digits: int) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return repr(float(f"{value:.{digits}g}"))
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str):
        return _string(value)
    parts = [_value(item, digits) for item in value]
    if len(parts) <= 10:
        return f"[{', '.join(parts)}]"
    rows = [", ".join(parts[start : start + 10]) for start in range(0, len(parts), 10)]
    return "[\n    " + ",\n    ".join(rows) + ",\n]"
