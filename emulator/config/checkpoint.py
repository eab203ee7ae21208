"""Describe large models and the checkpoint files that each rank writes. Pure.

The published sizes of MLPerf Storage v2.0 (rules, table 2) are in binary units. What the shapes give:

    model  parameters  these files                published  8 ranks of a host  published
    8B       8.030e9     104.70 GiB   112.42 GB    105 GB        104.70 GiB        105 GB
    70B     69.883e9     911.18 GiB   978.38 GB    912 GB        113.90 GiB        114 GB
    405B   405.853e9   5,291.78 GiB  5,682.01 GB   5.29 TB        98.54 GiB         94 GB
    1T   1,183.035e9  15,425.11 GiB 16,562.58 GB    18 TB        143.71 GiB        161 GB

- The published 5.29 TB are thousands of GiB. The published 94 GB are 8 mean ranks that write parameters
  (11.81 GiB each); ranks 0 to 7 also hold the embedding, and a layer more than the last stages.
- The published 18 TB of 1T are a misprint of MLPerf's table: runs published under v3.0 report a size of
  15,426.6 GiB, 0.01 % more than these files. The published 161 GB follow when each stage but the last writes
  a third layer beside its two (160.8 GiB): an inference.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from emulator.config.catalog import find, names
from emulator.config.reader import Bytes, Seconds, at_least, build, read_toml
from emulator.errors import SpecError
from emulator.units import BLOCK_BYTES

MOST_LAYERS, MOST_RANKS = 100_000, 10_000_000
"""Limits against slips: every layer and every rank is iterated over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TransformerShape:
    """A decoder of equal layers with grouped-query attention and a gated feed-forward part."""

    hidden: int
    """Width of the model."""
    ffn: int
    """Width of the feed-forward part."""
    heads: int
    """Query heads; a head is hidden // heads wide."""
    kv_heads: int
    layers: int
    vocabulary: int
    """Tokens; the embedding and the output head are vocabulary x hidden each."""

    def __post_init__(self) -> None:
        at_least(1, self, "hidden", "ffn", "heads", "kv_heads", "layers", "vocabulary")
        if self.layers > MOST_LAYERS:
            raise SpecError(f"layers must be at most {MOST_LAYERS}, not {self.layers}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallelism:
    """The division of a model over ranks."""

    tensor: int
    """Ranks that share every matrix of a layer."""
    pipeline: int
    """Stages that share the layers."""
    data: int
    """Copies of the whole."""
    zero: int
    """ZeRO stage: 0 nothing is sharded over the copies, 1 and 2 the optimiser, 3 the parameters too."""

    def __post_init__(self) -> None:
        at_least(1, self, "tensor", "pipeline", "data")
        if self.ranks > MOST_RANKS:
            raise SpecError(f"tensor x pipeline x data must be at most {MOST_RANKS}, not {self.ranks}")
        if self.zero not in (0, 1, 2, 3):
            raise SpecError(f"zero must be a ZeRO stage from 0 to 3, not {self.zero}")
        if self.zero == 3 and self.pipeline > 1:
            raise SpecError("zero = 3 shards the parameters, so pipeline must be 1")

    @property
    def ranks(self) -> int:
        return self.tensor * self.pipeline * self.data


@dataclass(frozen=True, slots=True, kw_only=True)
class StateSpec:
    """Bytes of a checkpoint per parameter."""

    model_bytes: int = 2
    """The parameter itself: 2 for fp16."""
    optimiser_bytes: int = 12
    """Its optimiser state: 12 for fp32 master copy, first and second moment."""

    def __post_init__(self) -> None:
        at_least(0, self, "model_bytes", "optimiser_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointIO:
    """Settings with which a rank writes and reads its files."""

    writes: int = 10
    reads: int = 10
    """Checkpoints that are read back afterwards."""
    pause: Seconds = 5.0
    """Seconds between two of them."""
    block_bytes: Bytes = 16 * 2**20
    """Bytes of one request."""
    workers: int = 2
    """Requests that a rank keeps in flight."""
    direct: bool = True
    """Use O_DIRECT where the file system supports it."""

    def __post_init__(self) -> None:
        at_least(0, self, "writes", "reads", "pause")
        at_least(1, self, "workers")
        at_least(BLOCK_BYTES, self, "block_bytes")
        if self.block_bytes % BLOCK_BYTES:
            raise SpecError(
                f"block_bytes must be a multiple of {BLOCK_BYTES} (O_DIRECT), not {self.block_bytes}"
            )


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
    sources: Mapping[str, str] = field(default_factory=dict)
    """Dotted key -> where its number comes from."""


def checkpoint_models() -> list[str]:
    return names("workloads/checkpoints")


def load_checkpoint_model(name: str, settings: Sequence[str] = ()) -> CheckpointModel:
    """Load the model of that name, or in that TOML file, with `--set` settings applied.

    Raises SpecError, StorageError.
    """
    table, source = read_toml(find("workloads/checkpoints", name), settings)
    return build(CheckpointModel, table, source)


def split(total: int, parts: int, part: int) -> int:
    """Return share number `part` of `total` in `parts` integer shares that differ by at most one."""
    return total * (part + 1) // parts - total * part // parts


def layer_matrices(shape: TransformerShape) -> int:
    """Return the parameters of a layer's matrices: h (h + 2 k) for Q, K, V; h h for the output; 3 h f, gated.

    k = (hidden // heads) x kv_heads. Source: Llama 3 (grouped-query attention, SwiGLU), as in DLIO 2.0.
    """
    kv = shape.hidden // shape.heads * shape.kv_heads
    return shape.hidden * (shape.hidden + 2 * kv + shape.hidden + 3 * shape.ffn)


def parameters(shape: TransformerShape) -> int:
    """Return layers x (matrices + 2 norms of h) + embedding and head of v h each + the last norm."""
    layer = layer_matrices(shape) + 2 * shape.hidden
    return shape.layers * layer + 2 * shape.vocabulary * shape.hidden + shape.hidden


def stage_layers(layers: int, stages: int, stage: int) -> range:
    """Return the layers of a stage, numbered from 1. Where stages differ, the first ones have one more."""
    fewest, more = divmod(layers, stages)
    first = 1 + stage * fewest + min(stage, more)
    return range(first, first + fewest + (stage < more))


def model_files(model: CheckpointModel, tensor: int, stage: int) -> list[tuple[str, int]]:
    """Return (name, parameters) of a tensor rank's parts of a stage: embedding, layers, last norm, head.

    Matrices, embedding and head are shared among the tensor ranks; every one of them has the norms whole.
    """
    shape, spread = model.shape, model.parallelism
    table = split(shape.vocabulary * shape.hidden, spread.tensor, tensor)
    layer = split(layer_matrices(shape), spread.tensor, tensor) + 2 * shape.hidden
    numbers = stage_layers(shape.layers, spread.pipeline, stage)
    files = [(f"layer_{number:03d}", layer) for number in numbers]
    if stage == 0:
        files.insert(0, ("layer_000_embedding", table))
    if stage == spread.pipeline - 1:
        files.append((f"layer_{shape.layers + 1:03d}_head", table + shape.hidden))
    return files


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of a checkpoint."""

    name: str
    size: int
    """Bytes."""


def shards(model: CheckpointModel, data: int, rank: int, scale: Fraction = Fraction(1)) -> tuple[Shard, ...]:
    """Return the files that `rank` of tensor x pipeline x `data` ranks writes, scaled by `scale`.

    Parameters: with ZeRO 3 the copies share them; below, the first copy alone writes them, a file per layer
    where there are pipeline stages. Optimiser: with ZeRO 1 to 3 every rank has an equal share, without it
    the ranks of the first copy have. Source: DLIO 2.0, which MLPerf Storage v2.0 pins.
    """
    spread, state = model.parallelism, model.state
    group_ranks = spread.tensor * spread.pipeline
    copy, group = divmod(rank, group_ranks)
    sizes = {
        f"{name}-mp_{group:03d}-model": count * state.model_bytes
        for name, count in _parameter_files(model, data, copy, group)
    }
    if spread.zero or copy == 0:
        sharing = group_ranks * data if spread.zero else group_ranks
        count = split(parameters(model.shape), sharing, rank)
        sizes[f"dp_{copy:03d}-mp_{group:03d}-optimiser"] = count * state.optimiser_bytes
    # Scaled sizes are rounded up: no file vanishes.
    return tuple(Shard(name=name, size=math.ceil(size * scale)) for name, size in sizes.items() if size)


def _parameter_files(model: CheckpointModel, data: int, copy: int, group: int) -> list[tuple[str, int]]:
    """Return (name, parameters) of the files with parameters that rank `group` of a copy writes."""
    spread = model.parallelism
    if spread.zero < 3 and copy > 0:
        return []
    stage, tensor = divmod(group, spread.tensor)  # tensor ranks change fastest, as in Megatron and DLIO
    files = model_files(model, tensor, stage)
    whole = sum(count for _, count in files)
    if spread.zero == 3:
        return [(f"dp_{copy:03d}", split(whole, data, copy))]
    return [("all", whole)] if spread.pipeline == 1 else files


def data_parallel(model: CheckpointModel, ranks: int, subset: bool) -> int:
    """Return the copies of the model that `ranks` ranks write; with `subset`, that the published ranks write.

    Raises SpecError when the ranks do not fill whole copies, or are more than there are.
    """
    spread = model.parallelism
    if subset:
        if ranks > spread.ranks:
            raise SpecError(
                f"{model.name} has {spread.ranks} ranks, fewer than a subset of {ranks}", "lower -n"
            )
        return spread.data
    group = spread.tensor * spread.pipeline
    if ranks % group:
        raise SpecError(
            f"a copy of {model.name} takes {group} ranks, and {ranks} is not a multiple of {group}",
            f"start {spread.ranks} ranks, or 8 with --subset",
        )
    return ranks // group


def total(model: CheckpointModel, data: int, ranks: int, scale: Fraction = Fraction(1)) -> int:
    """Return the bytes that the first `ranks` ranks write."""
    return sum(shard.size for rank in range(ranks) for shard in shards(model, data, rank, scale))


def parse_scale(text: str) -> Fraction:
    """Parse `1/1000`, `0.001` or `1` as a fraction above 0 and at most 1. Raises SpecError."""
    try:
        scale = Fraction(text)
    except (ValueError, ZeroDivisionError):
        scale = Fraction(0)
    if not 0 < scale <= 1:
        raise SpecError(f"--scale {text!r} is not a share", "write it like 1/1000 or 0.001, at most 1")
    return scale
