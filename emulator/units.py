"""Parse and show sizes, rates and durations.

Numbers are bytes, bytes per second and seconds. In text GB is 10^9 bytes and GiB 2^30; `b` is a bit, `B` a
byte.
"""

from __future__ import annotations

import math
import re

from emulator.errors import SpecError

BLOCK_BYTES = 4096
"""Size of a memory page, and the alignment of offsets, lengths and addresses that O_DIRECT needs."""

_PREFIX = {"": 0, "k": 1, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5, "E": 6}
_SIZE = re.compile(r"\s*([0-9][0-9_]*(?:\.[0-9]+)?)\s*([kKMGTPE]?)(i?)([bB]?)\s*")
_SECONDS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(us|ms|s|m|min|h|d)\s*")


def _size(text: str, allow_bits: bool) -> float | None:
    """Return the bytes that `text` says, or None when it is no size."""
    match = _SIZE.fullmatch(text)
    if match is None:
        return None
    number, prefix, binary, unit = match.groups()
    if (binary and not prefix) or (unit == "b" and not allow_bits):
        return None
    factor: int = (1024 if binary else 1000) ** _PREFIX[prefix]
    return float(number.replace("_", "")) * factor / (8 if unit == "b" else 1)


def parse_bytes(text: str | int) -> int:
    """Return bytes for `"4MiB"`, `"2TB"`, `"512"` or a number. Raises SpecError."""
    if isinstance(text, int):
        return text
    size = _size(text, allow_bits=False)
    if size is None:
        raise SpecError(f"{text!r} is not a size", "write it like 512, 4MiB, 1.5GB or 2TB")
    return round(size)


def parse_rate(text: str | float) -> float:
    """Return bytes per second for `"400MB/s"`, `"200Gb/s"` or a number. Raises SpecError."""
    if not isinstance(text, str):
        return float(text)
    size = _size(text.removesuffix("/s"), allow_bits=True)
    if size is None or not text.endswith("/s") or size <= 0:
        raise SpecError(f"{text!r} is not a rate", "write it like 400MB/s, 45GB/s or 200Gb/s")
    return size


def parse_seconds(text: str | float) -> float:
    """Return seconds for `"2ms"`, `"90s"`, `"2h"` or a number. Raises SpecError."""
    if not isinstance(text, str):
        return float(text)
    match = _DURATION.fullmatch(text)
    if match is None:
        raise SpecError(f"{text!r} is not a duration", "write it like 500us, 2ms, 30s, 5m or 2h")
    return float(match[1]) * _SECONDS[match[2]]


def parse_list(option: str, text: str, what: str = "numbers above 0") -> tuple[int, ...]:
    """Return the whole numbers above 0 in `"1,8,32"`. Raises SpecError naming the option."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and int(part) > 0 for part in parts):
        raise SpecError(f"{option} {text!r} is not a list of {what}", "write it like 1,8,32")
    return tuple(map(int, parts))


def parse_share(option: str, text: str) -> float:
    """Return the share (0 to 1) that `"5%"` or `"0.05"` says. Raises SpecError naming the option."""
    match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*(%?)\s*", text)
    share = float(match[1]) / (100 if match[2] else 1) if match else math.nan
    if not 0 <= share < 1:
        raise SpecError(f"{option} {text!r} is not a share below 1", "write it like 5% or 0.05")
    return share


def _scaled(value: float, unit: str) -> str:
    for prefix, power in (("E", 18), ("P", 15), ("T", 12), ("G", 9), ("M", 6), ("k", 3)):
        if value >= 10**power * 0.9995:
            return f"{value / 10**power:.3g} {prefix}{unit}"
    return f"{value:.3g} {unit}"


def counted(count: float, what: str) -> str:
    """Format a count with its noun: `1 file`, `4 files`. A float has three digits."""
    return (
        f"1 {what}" if count == 1 else f"{count if isinstance(count, int) else format(count, '.3g')} {what}s"
    )


def show_bytes(value: float) -> str:
    """Format bytes with a decimal prefix and three digits: `1.5 GB`."""
    return _scaled(value, "B")


def show_rate(value: float) -> str:
    """Format bytes per second: `400 MB/s`."""
    return _scaled(value, "B/s")


def show_seconds(value: float) -> str:
    """Format a duration: `12 ms`, `3.2 s`, `4 min 10 s`, `2 h 05 min`."""
    if not math.isfinite(value):
        return "unknown time"
    if value < 1:
        return f"{value * 1e3:.3g} ms"
    if value < 60:
        return f"{value:.3g} s"
    minutes, seconds = divmod(round(value), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {seconds:02d} s"
