"""Sizes: what the shapes give, against what was published; and that shards add up whatever the spread."""

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from emulator.config.checkpoint import (
    CheckpointModel,
    Parallelism,
    TransformerShape,
    data_parallel,
    load_checkpoint_model,
    parameters,
    parse_scale,
    shards,
    total,
)
from emulator.errors import SpecError

GIB = 2**30

EXPECTED = {
    "llama3-8b": (8_030_261_248, 105, 0.01, 105, 0.01),  # parameters: the model card of Llama 3 8B
    "llama3-70b": (69_882_617_856, 912, 0.01, 114, 0.01),
    "llama3-405b": (405_853_388_800, 5_290, 0.001, 94, 0.05),
    "llama3-1t": (1_183_035_102_480, 18_000, 0.15, 161, 0.11),  # the table contradicts its own shape
}
"""Parameters; published GiB of the whole and of 8 ranks, each with how far the shapes may be from it."""


@pytest.mark.parametrize("name", EXPECTED)
def test_the_published_sizes(name):
    count, whole, near, subset, near_subset = EXPECTED[name]
    model = load_checkpoint_model(name)
    data, ranks = model.parallelism.data, model.parallelism.ranks
    assert parameters(model.shape) == count
    assert total(model, data, ranks) / GIB == pytest.approx(whole, rel=near)
    assert total(model, data, 8) / GIB == pytest.approx(subset, rel=near_subset)
    for key in ("shape.hidden", "shape.vocabulary", "parallelism.zero"):
        assert model.sources[key]


def test_rules_example_of_405b():
    """Rules v2.0, 2.2.2.1: "256x 11.8GB, 256x 8.85GB" (GiB): with and without parameters."""
    model = load_checkpoint_model("llama3-405b")
    sizes = [sum(shard.size for shard in shards(model, 2, rank)) / GIB for rank in range(512)]
    assert sum(sizes[:256]) / 256 == pytest.approx(11.8, abs=0.05)
    assert sizes[256:] == pytest.approx([8.85] * 256, abs=0.02)


small = st.integers(1, 6)


@st.composite
def models(draw) -> tuple[CheckpointModel, int]:
    zero = draw(st.sampled_from([0, 1, 2, 3]))
    shape = TransformerShape(
        hidden=draw(st.integers(4, 200)),
        ffn=draw(st.integers(1, 300)),
        heads=draw(st.integers(1, 4)),
        kv_heads=draw(st.integers(1, 4)),
        layers=draw(st.integers(1, 30)),
        vocabulary=draw(st.integers(1, 999)),
    )
    pipeline = 1 if zero == 3 else draw(small)
    spread = Parallelism(tensor=draw(small), pipeline=pipeline, data=draw(small), zero=zero)
    return CheckpointModel(name="any", title="any", shape=shape, parallelism=spread), spread.data


@given(models())
def test_every_parameter_is_written_once_and_every_optimiser_state_too(drawn):
    model, data = drawn
    spread, shape = model.parallelism, model.shape
    copies = (spread.tensor - 1) * (2 * shape.layers + 1) * shape.hidden  # norms: whole on each tensor rank
    wanted = 14 * parameters(shape) + 2 * copies
    assert total(model, data, spread.ranks) == wanted


@given(models(), st.fractions(Fraction(1, 10**6), 1))
def test_names_are_unique_and_scaled_files_are_not_empty(drawn, scale):
    model, data = drawn
    names = []
    for rank in range(model.parallelism.ranks):
        whole = {shard.name: shard.size for shard in shards(model, data, rank)}
        for shard in shards(model, data, rank, scale):
            assert shard.size > 0 and 0 <= shard.size - whole[shard.name] * scale < 1
            names.append(shard.name)
    assert len(set(names)) == len(names)


def test_ranks_are_numbered_tensor_first():
    model = load_checkpoint_model("llama3-405b")
    first, last, copy = (shards(model, 2, rank) for rank in (0, 255, 8 * 32 + 8 + 3))
    assert first[0].name == "layer_000_embedding-mp_000-model"
    assert last[-2].name == "layer_127_head-mp_255-model"
    assert [shard.name for shard in copy] == ["dp_001-mp_011-optimiser"]


def test_rank_counts_that_cannot_be():
    model = load_checkpoint_model("llama3-70b")
    assert data_parallel(model, 16, subset=False) == 2
    assert data_parallel(model, 8, subset=True) == 8
    for ranks, subset in ((12, False), (65, True)):
        with pytest.raises(SpecError) as error:
            data_parallel(model, ranks, subset)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("text", ["0", "-1", "2", "1/0", "much", "", "nan"])
def test_scales_that_cannot_be(text):
    with pytest.raises(SpecError, match="1/1000"):
        parse_scale(text)
    assert parse_scale("1/1000") == parse_scale("0.001") == Fraction(1, 1000)


def test_models_that_cannot_be():
    for name, setting, said in (
        ("lama3-8b", "io.writes=1", "did you mean 'llama3-8b'"),
        ("llama3-8b", "parallelism.zero=4", r"parallelism\.zero"),
        ("llama3-8b", "parallelism.pipeline=2", "pipeline must be 1"),
        ("llama3-8b", "io.block_bytes=1000", r"io\.block_bytes"),
    ):
        with pytest.raises(SpecError, match=said):
            load_checkpoint_model(name, [setting])
    assert load_checkpoint_model("llama3-8b", ["io.pause=2s"]).io.pause == 2
