"""What a rank asks storage for: consecutive samples of a file, and the reads of a step."""

from __future__ import annotations

from typing import Literal, NamedTuple

How = Literal["alone", "start", "on"]
"""alone: these samples and no byte more. start, on: whole blocks (row groups) of a stream that goes through
the file: those that begin within the samples, and for `start` the one that the first of them lies in too."""


class Read(NamedTuple):
    """Consecutive samples of one file."""

    file: int
    """Index of the file."""
    first: int = 0
    """Number of the first sample, within the file."""
    samples: int = 1
    how: How = "alone"


class Portion(NamedTuple):
    """What a step of one rank takes."""

    samples: int
    """Samples that the accelerator gets."""
    reads: tuple[Read, ...]
    """What has to be read for them and has not been read for an earlier step."""


def whole_files(files: tuple[int, ...]) -> Portion:
    """A step over these files, one sample each."""
    return Portion(len(files), tuple(Read(file) for file in files))
