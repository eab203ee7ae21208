"""Process counts with an ellipsis: `1,10,...,100000`."""

from __future__ import annotations

from emulator.errors import SpecError


def parse_progression(text: str) -> tuple[int, ...]:
    """Counts from `1,8,64`, `1-8`, or with `...`, which goes on by the ratio of the two before it, or by
    their difference when the last count is not met by the ratio. Raises SpecError.
    """
    counts: list[int] = []
    parts = [part.strip() for part in text.split(",")]
    for place, part in enumerate(parts):
        if part in ("...", "…"):
            counts.extend(_between(counts, parts[place + 1 : place + 2], text))
        else:
            counts.extend(_counts(part, text))
    return tuple(counts)


def _counts(part: str, text: str) -> range:
    first, dash, last = part.partition("-")
    if not first.isdigit() or (dash and not last.isdigit()):
        raise SpecError(
            f"--counts {text!r} is not a list of process counts",
            "write it like 1,2,4,8, 1-8 or 1,10,...,1000",
        )
    low, high = int(first), int(last or first)
    if not 1 <= low <= high:
        raise SpecError(f"--counts {text!r} has {part!r}", "counts begin at 1 and ranges ascend")
    return range(low, high + 1)


def _between(before: list[int], after: list[str], text: str) -> list[int]:
    """The counts that `...` stands for, without its neighbours."""
    if len(before) < 2 or not after or not after[0].isdigit() or not before[-2] < before[-1] < int(after[0]):
        raise SpecError(
            f"--counts {text!r}: '...' stands between ascending counts", "write it like 1,10,...,1000"
        )
    first, second, last = before[-2], before[-1], int(after[0])
    if second % first == 0:
        found = [second]
        while found[-1] < last:
            found.append(found[-1] * (second // first))
        if found[-1] == last:
            return found[1:-1]
    if (last - second) % (second - first) == 0:
        return list(range(second, last, second - first))[1:]
    raise SpecError(
        f"--counts {text!r}: {last} does not follow from {first}, {second}", "end with a count that does"
    )
