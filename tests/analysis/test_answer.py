"""The one answer: what it says of a result, and that the gate never contradicts it."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from points import RATE, SAMPLE_BYTES, point
from synthetic_results import result

from emulator.analysis.answer import answer_of, at_threshold, gated, named
from emulator.analysis.gate import MET, UNKNOWN, require, threshold_of
from emulator.analysis.knee import find_knee, whole_accelerators
from emulator.errors import NOT_MET
from emulator.record.result import Bound, Flag, Point, RunResult
from emulator.units import show_rate


def swept(points: list[Point], threshold: float = 0.9) -> RunResult:
    made = result(points)
    made = replace(made, workload={**made.workload, "training": {"au_threshold": threshold}})
    several = len({at.ranks for at in points}) > 1
    return replace(made, knee=find_knee(points, threshold) if several else None)


def limited(ranks: int, efficiency: float, limit: float = 0.0) -> Point:
    share = min(efficiency, limit / ranks) if limit else efficiency
    kind = "compute" if share > 0.95 else "bandwidth"
    return point(ranks, share, bound=Bound(kind=kind, evidence=()))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("count", "name", "text"),
    [
        (1, "A100", "1 A100"),
        (1.996, "A100", "2 A100s"),
        (0.0907, "H100", "0.091 of an H100"),
        (0.5, "V100 32 GB", "0.5 of a V100 32 GB"),
        (2, "V100 32 GB", "2 V100s 32 GB"),
        (2, "accelerator in miniature", "2 accelerators in miniature"),
        (0.5, "accelerator", "0.5 of an accelerator"),
        (1234, "B200", "1,234 B200s"),
    ],
)
def test_accelerators_are_counted_in_the_right_number(count, name, text):
    assert named(count, name) == text


def test_less_than_one_is_a_share_of_one():
    """9 % of an H100's demand was "does not feed 1 H100" here and "read 288 MB/s" there."""
    answer = answer_of(swept([limited(1, 0.0907)]))
    assert answer.number == pytest.approx(0.0907) and "0.091 of an A100" in answer.sentence
    assert answer.interval == (answer.number, answer.number)
    several = answer_of(swept([limited(n, 0.4 / n) for n in (1, 2, 4)]))
    assert several.number is not None and 0.3 < several.number < 0.5, "the ranks of a count are summed"


def test_a_share_that_the_client_limits_is_the_least():
    slow = point(1, 0.3, bound=Bound(kind="client-cpu", evidence=()))
    made = swept([slow])
    answer = gated(answer_of(made), 1, made)
    assert "feeds at least 0.3 of an A100" in answer.sentence
    assert answer.gate is not None and answer.gate.status == UNKNOWN


def test_the_sentence_has_the_interval_that_the_gate_decides_by():
    made = swept([limited(n, 1.0, 5.55) for n in (1, 2, 4, 5, 6, 8, 6, 5, 6)])
    answer = gated(answer_of(made), 5, made)
    assert answer.number is not None and answer.interval is not None and answer.interval[1] is not None
    low, high = answer.interval
    assert f"between {low:.3g} and {high:.3g}" in answer.sentence and answer.threshold == 0.9
    assert answer.limit.startswith("storage bandwidth, ")


def test_a_threshold_recomputes_the_answer_and_not_the_gate_alone():
    """`report --threshold 0.95` left the sentence at 90 %, and the gate said something else."""
    made = swept([limited(n, 1.0, 10) for n in (1, 2, 4, 8, 10, 11, 12, 14, 16)])
    strict = at_threshold(made, 0.6)
    first, second = answer_of(made), gated(answer_of(strict), 14, strict)
    assert first.number is not None and second.number is not None and second.number > 1.3 * first.number
    assert "at 60 % of their demand" in second.sentence and threshold_of(strict) == 0.6
    assert second.gate is not None and second.gate.status == MET and "60 %" in second.gate.evidence
    assert at_threshold(made, None) is made and at_threshold(made, 0.9) is made


counts = st.lists(st.integers(1, 24), min_size=1, max_size=9)
limits = st.floats(0.05, 30.0)
noise = st.floats(-0.04, 0.04)
kinds = st.sampled_from(["compute", "bandwidth", "client-cpu", "iops"])


@st.composite
def results(draw) -> RunResult:
    limit = draw(limits)
    points = []
    for ranks in draw(counts):
        share = min(1.0, limit / ranks * (1 + draw(noise)))
        kind = "compute" if share >= 0.95 else draw(kinds.filter(lambda kind: kind != "compute"))
        flags = (Flag(name="page-cache", value=0.4, threshold=0.01, sentence="."),) * draw(st.booleans())
        points.append(point(ranks, share, bound=Bound(kind=kind, evidence=()), flags=flags))
    return swept(points, draw(st.sampled_from([0.5, 0.9, 0.95])))


@given(results(), st.integers(1, 30))
def test_headline_and_gate_never_contradict(made, required):
    answer = gated(answer_of(made), required, made)
    assert answer.gate is not None and answer.gate == require(required, made)
    low, high = answer.interval or (0.0, None)
    if answer.gate.status == MET:
        assert required <= whole_accelerators(low) and answer.number and answer.number >= 0.99 * required
    if answer.gate.status == NOT_MET:
        assert high is not None and required > high
        assert answer.number is None or whole_accelerators(answer.number) < required
    if answer.number is not None:
        assert low <= answer.number * (1 + 1e-9) and (high is None or answer.number <= high * (1 + 1e-9))


@given(results())
def test_an_answer_is_one_line_of_finite_numbers(made):
    answer = answer_of(made)
    assert "\n" not in answer.sentence and answer.sentence.endswith(".")
    assert answer.number is None or math.isfinite(answer.number)
    assert all(end is None or math.isfinite(end) for end in answer.interval or ())


def test_advice_is_for_the_accelerators_that_are_wanted():
    """`ask` said 3.22 GB/s at the threshold, and the page of its result 3.89 at the whole demand."""
    made = swept([limited(n, 1.0, 4) for n in (1, 2, 4, 8, 16)])
    asked = replace(made, environment={**made.environment, "asked": {"place": "/mnt/ai", "up_to": 100}})
    for found, threshold, wanted in ((made, None, 16), (asked, None, 100), (asked, 0.5, 100)):
        missing = ((threshold or 0.9) * wanted - 4) * RATE * SAMPLE_BYTES
        advice = answer_of(at_threshold(found, threshold)).advice
        assert advice == f"To feed {wanted}: {show_rate(missing)} more."


def test_runs_without_compute_or_points_have_a_sentence():
    assert answer_of(swept([])).sentence == "Nothing was measured."
    idle = replace(point(2, 0.5), ideal_samples_per_second=math.inf, x_ideal=0.0, au=0.0)
    assert "does not compute" in answer_of(result([idle])).sentence


def test_flags_and_runs_left_out_are_never_silent():
    raised = Flag(name="overshoot", value=0.1, threshold=0.01, sentence=".")
    cached = Flag(name="page-cache", value=0.4, threshold=0.01, sentence=".")
    points = [point(4, 1.0), point(8, 0.62, flags=(raised,)), point(16, 0.31)]
    assert answer_of(swept(points)).notes == ("Flagged, but used: 1 of 3 runs (overshoot).",)
    notes = answer_of(swept([*points, point(12, 1.0, flags=(cached,))])).notes
    assert notes[-1] == "Left out: 1 of 4 runs (page-cache)."


def test_where_the_client_was_the_limit_it_is_named():
    points = [point(4, 0.99), point(8, 0.7, bound=Bound(kind="client-cpu", evidence=()))]
    answer = answer_of(swept(points))
    assert "at 8 processes the limit was client CPU, not the storage" in answer.sentence
    assert answer.limit == "client CPU" and answer.advice.startswith("More hosts or cores")
