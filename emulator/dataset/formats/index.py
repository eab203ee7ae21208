"""Where the samples of a file with many lie: what a reader of a part of it has to know."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from emulator.dataset.formats.base import Span
from emulator.errors import DatasetError
from emulator.plan.reads import Read


class Extent(NamedTuple):
    """Consecutive bytes of a file."""

    offset: int
    size: int


Pieces = Sequence[tuple[Extent, memoryview]]
"""Extents and their bytes."""

CheckRecord = Callable[[memoryview], str]
"""Bytes of a sample as it is stored -> what is wrong with it; empty: nothing."""


class Index(Protocol):
    """Where the samples of one file lie. Pure."""

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        """The bytes that `read` asks for; a stream asks for whole blocks of `block` bytes."""
        ...

    def checked(self, read: Read) -> Sequence[Extent]:
        """The bytes that are needed to check what `read` asks for. Raises DatasetError: no checksums."""
        ...

    def check(self, read: Read, pieces: Pieces) -> None:
        """Raises DatasetError when the bytes of `checked` are not what was written."""
        ...


@dataclass(frozen=True, slots=True)
class Even:
    """Samples of the same size, one behind the other, from the first byte of the file to its last."""

    name: str
    size: int
    """Bytes of the file."""
    samples: int
    check_record: CheckRecord

    def _at(self, number: int) -> int:
        return self.size * number // self.samples

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        if read.how == "alone":
            return self.checked(read)
        begin, end = self._at(read.first), self._at(read.first + read.samples)
        first = begin // block if read.how == "start" else -(-begin // block)
        last = -(-end // block)
        return [Extent(first * block, min(last * block, self.size) - first * block)] if first < last else []

    def checked(self, read: Read) -> Sequence[Extent]:
        if self.size % self.samples:
            raise DatasetError(
                f"{self.name}: {self.size} bytes are not {self.samples} samples of one size",
                "--set access.pattern=sequential reads such files, without --verify-reads",
            )
        begin = self._at(read.first)
        return [Extent(begin, self._at(read.first + read.samples) - begin)]

    def check(self, read: Read, pieces: Pieces) -> None:
        ((_, data),) = pieces
        each = self.size // self.samples
        for number in range(read.samples):
            wrong = self.check_record(data[number * each : (number + 1) * each])
            if wrong:
                raise DatasetError(
                    f"{self.name}: {wrong} (sample {read.first + number})",
                    "its bytes are not those that were generated; run feedrate verify on the dataset",
                )


@dataclass(frozen=True, slots=True)
class Stacked:
    """Arrays whose first axis counts the samples, as HDF5 files hold them."""

    name: str
    spans: tuple[Span, ...]

    def extents(self, read: Read, block: int) -> Sequence[Extent]:
        found = []
        for span in self.spans:
            each = span.size // span.shape[0]
            found.append(Extent(span.offset + read.first * each, read.samples * each))
        return found

    def checked(self, read: Read) -> Sequence[Extent]:
        raise DatasetError(
            f"{self.name}: the format keeps no checksums of single samples",
            "leave --verify-reads out; feedrate verify compares whole files",
        )

    def check(self, read: Read, pieces: Pieces) -> None:
        self.checked(read)


def stacked(spans: Mapping[str, Span] | None, samples: int, name: str) -> Stacked:
    """The index of a file whose arrays lie at `spans`. Raises DatasetError."""
    if spans is None or any(span.shape[0] != samples for span in spans.values()):
        raise DatasetError(
            f"{name}: it does not hold {samples} samples one behind the other",
            "generate the dataset again, or read whole files",
        )
    return Stacked(name, tuple(spans.values()))


def total(extents: Iterable[Extent]) -> int:
    """Bytes of `extents`."""
    return sum(extent.size for extent in extents)
