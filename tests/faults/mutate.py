"""Files that are damaged on purpose: bytes, and values of JSON, TOML and YAML. Repeatable by seed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from random import Random
from typing import Any

HOSTILE: tuple[Any, ...] = (
    None,
    True,
    False,
    0,
    1,
    -1,
    2**31,
    2**63,
    2**64,
    10**18,
    -(10**30),
    0.5,
    -0.0,
    1e-320,
    1e300,
    float("inf"),
    float("nan"),
    "",
    "x",
    "\0",
    "a\nb",
    "../../etc/hostname",
    "/etc/passwd",
    "\x1b[31mred",
    "9" * 400,
    "é😀",
    "1e400",
    [],
    {},
    [0],
    [[]],
    [None] * 9,
    {"x": {"x": {}}},
    "k" * 100_000,
    list(range(5000)),
    "-1GB",
    "NaN",
)
"""Values that a careless reader multiplies, allocates, opens or prints."""


def bytes_damaged(data: bytes, random: Random) -> bytes:
    """`data` with one kind of damage: flipped bits, hostile integers, cut, lengthened, moved or emptied."""
    raw = bytearray(data)
    kind = random.randrange(9)
    place = random.randrange(max(1, len(raw)))
    if kind == 0 and raw:
        for _ in range(random.choice((1, 1, 2, 8))):
            raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
    elif kind == 1 and raw:
        width = random.choice((1, 2, 4, 8))
        value = random.choice(
            (0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), random.randrange(2 ** (8 * width)))
        )
        raw[place : place + width] = value.to_bytes(width, random.choice(("little", "big")))
    elif kind == 2:
        del raw[place:]
    elif kind == 3:
        del raw[place : place + random.choice((1, 4, 512))]
    elif kind == 4:
        raw[place:place] = random.randbytes(random.choice((1, 4, 512)))
    elif kind == 5:
        head = min(len(raw), random.choice((64, 512)))
        raw[random.randrange(head + 1) : head] = random.randbytes(8)
    elif kind == 6 and raw:
        tail = len(raw) - min(len(raw), random.choice((8, 64, 512)))
        raw[random.randrange(tail, len(raw))] ^= 0xFF
    elif kind == 7:
        raw += random.randbytes(random.choice((1, 7, 4096)))
    else:
        raw = bytearray(random.choice((b"", b"\0" * 64, b"{}", b"\xff\xfe", b"[" * 5000, bytes(len(raw)))))
    return bytes(raw)


def _places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    if isinstance(value, dict):
        for key, item in value.items():
            found += _places(item, (*path, key))
    elif isinstance(value, list):
        for number, item in enumerate(value[:50]):
            found += _places(item, (*path, number))
    return found


def value_damaged(value: Any, random: Random) -> Any:
    """A tree of plain values in which one is replaced, removed, renamed, repeated or grafted elsewhere."""
    tree = copy.deepcopy(value)
    places = _places(tree)
    if not places:
        return random.choice(HOSTILE)
    for _ in range(random.choice((1, 1, 1, 2))):
        path = random.choice(places)
        parent = tree
        try:
            for key in path[:-1]:
                parent = parent[key]
            kind = random.randrange(6)
            if kind == 0:
                del parent[path[-1]]
            elif kind == 1 and isinstance(parent, dict):
                parent[random.choice(("x", "", "schema", str(path[-1]) + "s"))] = parent.pop(path[-1])
            elif kind == 2 and isinstance(parent[path[-1]], int | float):
                parent[path[-1]] = random.choice(
                    (parent[path[-1]] * -1, parent[path[-1]] * 10**12, parent[path[-1]] + 0.5)
                )
            elif kind == 3:
                parent[path[-1]] = copy.deepcopy(value)
            else:
                parent[path[-1]] = copy.deepcopy(random.choice(HOSTILE))
        except (KeyError, IndexError, TypeError):
            continue
    return tree


def text_damaged(text: str, random: Random) -> str:
    """Text of key and value lines (TOML, YAML): a value replaced, or a line removed, repeated or cut."""
    lines = text.splitlines()
    number = random.randrange(max(1, len(lines)))
    line = lines[number] if lines else ""
    mark = "=" if "=" in line else ":"
    kind = random.randrange(6)
    if kind <= 2 and mark in line:
        value = random.choice(HOSTILE)
        shown = value if isinstance(value, str) and random.random() < 0.3 else json.dumps(value)
        lines[number] = f"{line.partition(mark)[0]}{mark} {shown}"
    elif kind == 3 and lines:
        lines[number:number] = [line]
    elif kind == 4 and lines:
        del lines[number]
    elif lines:
        lines[number] = line[: random.randrange(len(line) + 1)]
    return "\n".join(lines) + "\n"


def json_damaged(data: bytes, random: Random) -> bytes:
    """A JSON file with hostile values, or, one time in three, with damaged bytes."""
    if random.random() < 0.33:
        return bytes_damaged(data, random)
    return json.dumps(value_damaged(json.loads(data), random)).encode()


def lines_damaged(data: bytes, random: Random) -> bytes:
    """A TOML or YAML file with hostile values, or, one time in four, with damaged bytes."""
    if random.random() < 0.25:
        return bytes_damaged(data, random)
    return text_damaged(data.decode(), random).encode("utf-8", "surrogatepass")


Damage = Callable[[bytes, Random], bytes]
