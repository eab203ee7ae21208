"""Files that are damaged on purpose, repeatable by seed: bytes, values of JSON, TOML and YAML, and fields of
binary formats, with the sums that guard them made right again, so that what lies behind these is met, too.
"""

from __future__ import annotations

import copy
import gzip
import io
import json
import struct
import warnings
import zipfile
from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import google_crc32c

HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, 2**64, 10**18, -(10**30), 0.5, -0.0, 1e-320, 1e300),
    *(float("inf"), float("nan"), "", "x", "\0", "a\nb", "../../etc/hostname", "/etc/passwd", "\x1b[31mred"),
    *("9" * 400, "é😀", "1e400", "-1GB", "NaN", "k" * 100_000),
    *([], {}, [0], [[]], [None] * 9, {"x": {"x": {}}}, list(range(5000))),
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


def one_of(*damages: Damage) -> Damage:
    """Each of them as often."""
    return lambda data, random: random.choice(damages)(data, random)


def _integers_damaged(raw: bytearray, places: Sequence[tuple[int, int]], random: Random) -> bytes:
    """One or two of the integers at `places` (offset, width) become hostile."""
    for at, width in random.sample(list(places), min(len(places), random.choice((1, 1, 2)))):
        old, top = int.from_bytes(raw[at : at + width], "little"), 2 ** (8 * width)
        value = (
            random.choice((0, 1, top - 1, top // 2, old + 1, old - 1, old * 2, random.randrange(top))) % top
        )
        raw[at : at + width] = value.to_bytes(width, "little")
    return bytes(raw)


_HEADERS = (
    b"{'descr': '|O', 'fortran_order': False, 'shape': (1,), }",
    b"{'descr': '<f4', 'fortran_order': True, 'shape': (8, 8, 8), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 999999999), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 8), }",
    b"{'descr': '<f4', 'fortran_order': False, 'shape': (), }",
    b"{'descr': [('a', '<f4'), ('b', '|O')], 'fortran_order': False, 'shape': (2,), }",
    b"{'descr': '<M8[ns]', 'fortran_order': False, 'shape': (2,), }",
    b"{'descr': '<f4'}",
    b"__import__('os').system('touch PWNED')",
    b"{" * 900,
    b"",
)


def npy_damaged(data: bytes, random: Random) -> bytes:
    """Another header, of another version, or of another length than it says."""
    length = int.from_bytes(data[8:10], "little")
    header, rest = data[10 : 10 + length], data[10 + length :]
    kind = random.randrange(4)
    if kind == 0:
        header = random.choice(_HEADERS)
        header += b" " * (-(len(header) + 11) % 64) + b"\n"
    elif kind == 1:
        header = bytes_damaged(header, random)[:60000]
    elif kind == 2:
        return data[:6] + bytes(random.choices(range(256), k=2)) + data[8:]
    else:
        return _integers_damaged(bytearray(data), [(8, 2)], random)
    return data[:8] + len(header).to_bytes(2, "little") + header + rest


def npz_damaged(data: bytes, random: Random) -> bytes:
    """A member's header damaged, a member renamed, doubled, left out or packed; fields of the zip."""
    if random.random() < 0.4:
        marks = (b"PK\x01\x02", b"PK\x03\x04", b"PK\x05\x06")
        starts = [at for mark in marks for at in range(len(data)) if data.startswith(mark, at)]
        starts = starts if len(starts) < 50 else starts[:50]
        fields = ((6, 2), (8, 2), (10, 2), (16, 4), (18, 4), (20, 4), (24, 4), (26, 2), (28, 2), (42, 4))
        places = [(at + field, width) for at in starts for field, width in fields]
        places = [(at, width) for at, width in places if at + width <= len(data)]
        return _integers_damaged(bytearray(data), places, random)
    members = []
    with zipfile.ZipFile(io.BytesIO(data)) as old:
        members = [(name, old.read(name)) for name in old.namelist()]
    at, kind, packing = random.randrange(len(members)), random.randrange(5), zipfile.ZIP_STORED
    name, content = members[at]
    if kind == 0:
        members[at] = (name, npy_damaged(content, random))
    elif kind == 1:
        members[at] = (random.choice(("../x.npy", "/x.npy", ".", "x.npy" * 900, "é\n.npy")), content)
    elif kind == 2:
        members.append(members[at])
    elif kind == 3:
        del members[at]
    else:
        packing = random.choice((zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2))
    new = io.BytesIO()
    with warnings.catch_warnings(), zipfile.ZipFile(new, "w", packing) as file:
        warnings.simplefilter("ignore")  # a name that appears twice is what is wanted
        for name, content in members:
            file.writestr(name, content)
    return new.getvalue()


def parquet_damaged(data: bytes, random: Random) -> bytes:
    """The footer: its bytes, or its length; and heads of pages, which stand anywhere."""
    size = int.from_bytes(data[-8:-4], "little")
    footer, kind = data[-8 - size : -8], random.randrange(4)
    if kind == 0:
        return _integers_damaged(bytearray(data), [(len(data) - 8, 4)], random)
    if kind == 1:
        at = random.randrange(len(data) - 8 - size)
        return data[:at] + bytes_damaged(data[at : at + 64], random)[:64].ljust(64, b"\0") + data[at + 64 :]
    footer = bytes_damaged(footer, random)
    return data[: -8 - size] + footer + len(footer).to_bytes(4, "little") + data[-4:]


def hdf5_damaged(data: bytes, random: Random) -> bytes:
    """Fields of the superblock and behind the signatures of its structures."""
    raw = bytearray(data)
    marks = (b"TREE", b"SNOD", b"HEAP", b"OHDR", b"FRHP", b"BTHD", b"OCHK", b"\x89HDF")
    starts = [at for mark in marks for at in _found(data, mark)]
    places = [(at + field, random.choice((1, 2, 4, 8))) for at in starts for field in range(4, 96, 2)]
    places += [(at, 8) for at in range(0, 2048, 8)]
    return _integers_damaged(raw, [(at, width) for at, width in places if at + width <= len(raw)], random)


def _found(data: bytes, mark: bytes) -> list[int]:
    places, at = [], data.find(mark)
    while at >= 0 and len(places) < 64:
        places.append(at)
        at = data.find(mark, at + 1)
    return places


def _crc32c(data: bytes) -> bytes:
    crc = int(google_crc32c.value(data))
    return struct.pack("<L", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


def tfrecord_damaged(data: bytes, random: Random) -> bytes:
    """A record's length or its Example, under sums that are right."""
    records, at = [], 0
    while at + 16 <= len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        records.append((at, length))
        at += length + 16
    at, length = random.choice(records)
    body = data[at + 12 : at + 12 + length]
    if random.random() < 0.3:
        length = random.choice((0, 1, length - 1, length + 1, length * 2, 2**31, 2**63, 2**64 - 1))
    else:
        body = bytes_damaged(body[:80], random) + body[80:]
        length = len(body)
    head = struct.pack("<Q", length)
    end = at + 16 + struct.unpack_from("<Q", data, at)[0]
    return data[:at] + head + _crc32c(head) + body + _crc32c(body) + data[end:]


def nifti_damaged(data: bytes, random: Random) -> bytes:
    """Fields of the header: sizes, types, offsets, scales; packed again where it was."""
    packed = data.startswith(b"\x1f\x8b")
    raw = bytearray(gzip.decompress(data) if packed else data)
    shorts = [*range(40, 56, 2), 70, 72, 252, 254]
    places = [(at, 2) for at in shorts] + [(123, 1)]
    places += [(at, 4) for at in (0, *range(76, 120, 4), *range(280, 328, 4), 344, 348)]
    damaged = _integers_damaged(raw, [(at, width) for at, width in places if at + width <= len(raw)], random)
    return gzip.compress(damaged, 1) if packed else damaged


def gz_damaged(damage: Damage) -> Damage:
    """Unpack, damage, and pack again."""
    return lambda data, random: gzip.compress(damage(gzip.decompress(data), random), 1)
