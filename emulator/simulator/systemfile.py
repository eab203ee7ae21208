"""A fitted system as a system file: TOML that spec.system reads back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from emulator.errors import SpecError
from emulator.record.store import write_whole
from emulator.simulator.fit import Fit
from emulator.spec.system import System
from emulator.units import show_rate, show_seconds


def check_file(path: Path, force: bool) -> None:
    """Raises SpecError when `path` is there already, unless `force`."""
    if path.exists() and not force:
        raise SpecError(f"{path} is there already", "choose another --out, or add --force")


def write_system(path: Path, fit: Fit) -> None:
    """Write the system of `fit` whole or not at all. Raises StorageError."""
    text = "\n".join([*_head(fit), *_tables(fit.system), ""])
    write_whole(path, lambda file: file.write(text.encode()))


def _head(fit: Fit) -> list[str]:
    """What a reader of the file has to know, as comments."""
    fitted = fit.system.fit
    assert fitted is not None
    counts = ", ".join(f"{count:,}" for count in fitted.counts)
    lines = [f"# Fitted by feedrate to the counts {counts} of {', '.join(fitted.results)}."]
    if not fitted.identified:
        lines.append("# No count was beyond saturation: the bandwidth is a lower bound, not an estimate.")
    return [*lines, f"title = {json.dumps(fit.system.title)}"]


def _tables(system: System) -> Iterator[str]:
    for section in ("storage", "clients", "hardware", "fit"):
        spec = getattr(system, section)
        lines = list(_lines(spec)) if spec is not None else []
        if lines:
            yield from ("", f"[{section}]", *lines)
    yield from ("", "[sources]")
    for key, source in system.sources.items():
        yield f"{json.dumps(key)} = {json.dumps(source)}"


def _lines(spec: Any) -> Iterator[str]:
    """The fields that differ from their defaults, rates and durations with their reading as a comment."""
    assert is_dataclass(spec)
    for field in fields(spec):
        value = getattr(spec, field.name)
        if value is None or value == field.default:
            continue
        yield f"{field.name} = {_value(value)}{_reading(field.name, value)}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, tuple):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return json.dumps(value) if isinstance(value, str) else repr(value)


def _reading(name: str, value: Any) -> str:
    if not isinstance(value, float):
        return ""
    if "bandwidth" in name or name == "nic":
        return f"    # {show_rate(value)}"
    return f"    # {show_seconds(value)}" if "latency" in name else ""
