"""A recipe: the description of a dataset that is to be generated."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from emulator.config.catalog import find
from emulator.config.reader import Bytes, at_least, build, positive, read_toml
from emulator.errors import SpecError
from emulator.registry import FORMATS, PAYLOADS

Distribution = Literal["lognormal", "mlperf", "quantiles", "fixed"]

_DTYPE_BYTES = {"float16": 2, "float32": 4, "float64": 8, "int8": 1, "uint8": 1}

VOXEL_BYTES = 5
"""Bytes of one voxel: a float32 of the image and a uint8 of the label."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeSpec:
    """The sizes of the samples. Bytes count image and label: 5 per voxel."""

    distribution: Distribution = "lognormal"
    """lognormal, mlperf (normal): drawn again when outside [bytes_min, bytes_max]. quantiles: as listed.
    fixed: bytes_mean."""
    bytes_mean: Bytes
    """Mean bytes of a sample, after drawing again."""
    bytes_sd: Bytes = 0
    """Population standard deviation of the bytes of a sample, after drawing again."""
    bytes_min: Bytes = 0
    """Bytes of the smallest sample."""
    bytes_max: Bytes = 2**32 - 2**20
    """Bytes of the largest sample; below 4 GiB, the limit of a zip member."""
    shape: Literal["volume", "flat", "bytes"] = "volume"
    """flat: a sample is one row of bytes, rounded down to whole voxels. bytes: not rounded (format bytes)."""
    min_edge: int = 1
    """Voxels of the shortest edge: the job's crop has to fit in."""
    aspect: float = 1.35
    """Median of height / depth in voxels; the width is the height."""
    aspect_sigma: float = 0.0
    """Standard deviation of ln(height / depth)."""
    quantiles: tuple[int, ...] = ()
    """quantiles: bytes of the smallest sample, of evenly spaced ones between, of the largest; ascending."""
    listed: tuple[int, ...] = ()
    """quantiles, flat: bytes of single samples, which lie evenly spread among `listed_among` of them."""
    listed_among: int = 0
    """Samples after which `listed` begins again."""

    def __post_init__(self) -> None:
        positive(self, "bytes_mean", "aspect")
        at_least(0, self, "bytes_sd", "bytes_min", "aspect_sigma")
        at_least(1, self, "min_edge")
        self._check_range()
        self._check_quantiles()
        self._check_listed()

    def _check_range(self) -> None:
        if self.bytes_max >= 2**32:
            raise SpecError(f"bytes_max must be below 4 GiB, not {self.bytes_max}")
        if not self.bytes_min <= self.bytes_mean <= self.bytes_max:
            raise SpecError(f"bytes_mean must lie between bytes_min and bytes_max, not {self.bytes_mean}")
        if self.distribution in ("lognormal", "mlperf") and not self.bytes_min:
            raise SpecError("bytes_min must be given for this distribution")
        smallest = self.voxel_bytes * self.min_edge**3
        if (self.bytes_min or self.bytes_mean) < smallest:
            raise SpecError(
                f"min_edge of {self.min_edge} voxels needs samples of at least {smallest} bytes",
                "raise bytes_min or lower min_edge",
            )

    def _check_quantiles(self) -> None:
        sizes = self.quantiles
        if self.distribution != "quantiles":
            if sizes or self.listed:
                raise SpecError("quantiles and listed need distribution = 'quantiles'")
            return
        if len(sizes) < 2 or list(sizes) != sorted(sizes) or sizes[0] < 1:
            raise SpecError("quantiles must be two sizes or more, positive and ascending")
        if sizes[-1] > self.bytes_max:
            raise SpecError(f"quantiles go beyond bytes_max, {self.bytes_max}")

    def _check_listed(self) -> None:
        if not self.listed:
            return
        if self.shape == "volume" or len(self.listed) > self.listed_among:
            raise SpecError(
                "listed needs shape = 'flat' or 'bytes', and listed_among, which is not below their number"
            )
        if not 0 < min(self.listed) <= max(self.listed) <= self.bytes_max:
            raise SpecError(f"listed must lie between 1 and bytes_max, {self.bytes_max}")

    @property
    def voxel_bytes(self) -> int:
        return 1 if self.shape == "bytes" else VOXEL_BYTES


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSpec:
    """A column of a Parquet file, filled with random bytes."""

    name: str
    dtype: Literal["float16", "float32", "float64", "int8", "uint8"]
    size: int = 0
    """Values in a row, a list of fixed size; 0: a single value, no list."""

    def __post_init__(self) -> None:
        at_least(0, self, "size")
        if not self.name or "." in self.name:
            raise SpecError(f"name of a column must be text without dots, not {self.name!r}")

    @property
    def bytes(self) -> int:
        """Bytes of a row."""
        return _DTYPE_BYTES[self.dtype] * max(self.size, 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """A kind of dataset."""

    name: str
    """Short name: the folder's name under datasets/."""
    title: str
    """One line for people."""
    size: SizeSpec
    format: str = "npz"
    """File format of a sample: an entry point of `feedrate.formats`."""
    payload: str = "incompressible"
    """incompressible, ratio=R (the compression ratio of zstd), or an entry point of `feedrate.payloads`."""
    files: int = 168
    """Files that are generated when neither --files nor --size is given."""
    samples_per_file: int = 1
    """Formats for many samples: samples of the same shape in one file."""
    row_group: int = 0
    """parquet: rows of a row group; 0: one group holds the whole file."""
    columns: tuple[ColumnSpec, ...] = ()
    """parquet: its columns; none given: `x` and `y` of volumes."""
    sources: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> where its number comes from."""

    def __post_init__(self) -> None:
        at_least(1, self, "files", "samples_per_file")
        at_least(0, self, "row_group")
        if self.samples_per_file * self.size.bytes_mean > 2**50:
            raise SpecError(f"samples_per_file of {self.samples_per_file} makes files of more than 1 PiB")
        payload_ratio(self.payload)
        self._check_format()
        if self.columns and (self.format != "parquet" or self.payload in PAYLOADS):
            raise SpecError("columns need the format parquet and a payload of random bytes")
        if len({column.name for column in self.columns}) < len(self.columns):
            raise SpecError("columns must have different names")

    def _check_format(self) -> None:
        if self.format not in FORMATS:
            known = ", ".join(map(repr, FORMATS))
            raise SpecError(f"format must be one of {known}, not {self.format!r}")
        form = FORMATS.load(self.format)
        if not form.written:
            raise SpecError(f"feedrate reads files of the format {self.format}, but makes none")
        if self.size.shape == "bytes" and self.format != "bytes":
            raise SpecError(f"size.shape = 'bytes' needs the format bytes, not {self.format}")
        if self.samples_per_file > 1 and not form.many:
            raise SpecError(
                f"samples_per_file of {self.samples_per_file} needs a format for many samples, "
                f"not {self.format}",
                "hdf5, tfrecord, parquet and bytes hold many samples a file",
            )


def payload_ratio(payload: str) -> float | None:
    """Return R of the payload `ratio=R`, None for the other payloads. Raises SpecError."""
    kind, equals, text = payload.replace(" ", "").partition("=")
    if not equals and (kind == "incompressible" or kind in PAYLOADS):
        return None
    try:
        ratio = float(text)
    except ValueError:
        ratio = 0.0
    if kind != "ratio" or not 1 <= ratio <= 64:
        raise SpecError(
            f"payload {payload!r} is not known", f"use incompressible, ratio=R with R 1 to 64, or {PAYLOADS}"
        )
    return ratio


def load_recipe(name: str, settings: Sequence[str] = ()) -> Recipe:
    """Load the recipe of that name or path, with `--set` settings applied. Raises SpecError."""
    return build(Recipe, *read_toml(find("datasets", name), settings))
