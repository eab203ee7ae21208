"""A checkpoint: the shape of a model, how it is spread over ranks, how it is written and read back."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from emulator.errors import SpecError
from emulator.spec.catalog import content_folder
from emulator.spec.checks import at_least, positive
from emulator.spec.toml import Bytes, Seconds, build, override, read_table


def _whole(spec: object, minimum: int, *names: str) -> None:
    for name in names:
        at_least(name, getattr(spec, name), minimum)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A decoder of equal layers: attention with grouped key/value heads, and a gated feed-forward part."""

    hidden: int
    """Width of the model."""
    ffn: int
    """Width of the feed-forward part."""
    heads: int
    """Query heads; a head is hidden // heads wide."""
    kv_heads: int
    """Key and value heads."""
    layers: int
    vocabulary: int
    """Tokens; the embedding and the output head are vocabulary x hidden each."""

    def __post_init__(self) -> None:
        _whole(self, 1, "hidden", "ffn", "heads", "kv_heads", "layers", "vocabulary")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """How a model is spread over ranks."""

    tensor: int
    """Ranks that share every matrix of a layer."""
    pipeline: int
    """Stages that share the layers."""
    data: int
    """Copies of the whole."""
    zero: int
    """ZeRO stage: 0 nothing is sharded over the copies, 1 and 2 the optimiser, 3 the parameters too."""

    def __post_init__(self) -> None:
        _whole(self, 1, "tensor", "pipeline", "data")
        if self.zero not in (0, 1, 2, 3):
            raise SpecError(f"zero must be a ZeRO stage from 0 to 3, not {self.zero}")
        if self.zero == 3 and self.pipeline > 1:
            raise SpecError("zero = 3 shards the parameters, so pipeline must be 1")

    @property
    def ranks(self) -> int:
        """tensor x pipeline x data."""
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Bytes that are kept of one parameter."""

    model_bytes: int = 2
    """The parameter itself: 2 for fp16."""
    optimiser_bytes: int = 12
    """Its optimiser state: 12 for fp32 master copy, first and second moment."""

    def __post_init__(self) -> None:
        _whole(self, 0, "model_bytes", "optimiser_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIO:
    """How a rank writes and reads its files."""

    writes: int = 10
    """Checkpoints that are written."""
    reads: int = 10
    """Checkpoints that are read back afterwards."""
    pause: Seconds = 5.0
    """Seconds between two of them."""
    block_bytes: Bytes = 16 * 2**20
    """Bytes of one request."""
    workers: int = 2
    """Requests that a rank keeps in flight."""
    direct: bool = True
    """Past the page cache (O_DIRECT), where the file system takes it."""
    stall_timeout: Seconds = 300.0
    """Seconds without a block read or written after which a run is given up: the storage hangs."""

    def __post_init__(self) -> None:
        _whole(self, 0, "writes", "reads", "pause")
        at_least("workers", self.workers, 1)
        positive("stall_timeout", self.stall_timeout)
        at_least("block_bytes", self.block_bytes, 4096)
        if self.block_bytes % 4096:
            raise SpecError(f"block_bytes must be a multiple of 4096 (O_DIRECT), not {self.block_bytes}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedSize:
    """What was published of the checkpoint's size."""

    size: Bytes
    """Bytes of the whole."""
    subset: Bytes
    """Bytes of the 8 ranks of one host."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointModel:
    """A model whose training is checkpointed."""

    name: str
    """Short name: the file's name without .toml."""
    title: str
    """One line for people."""
    shape: TransformerShape
    parallelism: Parallelism
    state: StateSpec = StateSpec()
    io: CheckpointIO = CheckpointIO()
    published: PublishedSize | None = None
    sources: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> where its number comes from."""


def checkpoint_models() -> list[str]:
    """Names of the models that come with feedrate."""
    return sorted(path.stem for path in _folder().glob("*.toml"))


def load_checkpoint_model(name: str, settings: Sequence[str] = ()) -> CheckpointModel:
    """The model of that name, or in that TOML file, with `--set` settings over it.

    Raises SpecError, StorageError.
    """
    table, source = read_table(_find(name))
    source = replace(source, settings=tuple(settings))
    return build(CheckpointModel, override(table, settings), source)


def _folder() -> Path:
    return content_folder("workloads") / "checkpoints"


def _find(name: str) -> Path:
    given = Path(name)
    if given.suffix == ".toml" or len(given.parts) > 1:
        if given.is_file():
            return given
        raise SpecError(f"there is no file {name}", "check the path")
    path = _folder() / f"{name}.toml"
    if path.is_file():
        return path
    known = checkpoint_models()
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
    hint = f"did you mean {close[0]!r}?" if close else "known: " + ", ".join(known)
    raise SpecError(f"there is no model {name!r}", hint)
