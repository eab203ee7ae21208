"""Words and numbers of the report: pure functions."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from synthetic_results import CACHE, EXAMPLES, plain_sweep, point, result, shaped_sweep, steps_of, with_steps

from emulator.analysis.bound import HELPS, LIMIT_NAMES
from emulator.record.result import BoundKind
from emulator.report.charts import KNEE
from emulator.report.document import facts
from emulator.report.table import number
from emulator.report.training import host_rows, percentiles, points_table, setting
from emulator.report.training_figures import LIMITS, PARTS, dots_of, mean_steps
from emulator.report.view import limits, marks, marks_line, notes


@given(st.floats(1e-6, 1e9), st.integers(2, 5))
def test_a_shown_number_is_the_number(value: float, digits: int) -> None:
    assert float(number(value, digits).replace(",", "")) == pytest.approx(
        value, rel=10 ** (1 - digits), abs=1e-9
    )


def test_emulated_and_incomplete_results_are_marked() -> None:
    assert marks(plain_sweep()) == ()
    assert "shaped to 26 GB/s a node, 2 ms latency" in marks(shaped_sweep())[0].sentence
    assert marks(EXAMPLES["incomplete"]())[0].sentence.startswith("Incomplete: rank 3 on node001 died")
    both = replace(shaped_sweep(), status="incomplete")
    assert marks_line(both) == "incomplete · emulated storage, shaped to 26 GB/s a node, 2 ms latency"


def test_a_replay_faster_than_its_job_says_so_before_all_figures() -> None:
    short = replace(CACHE, name="job-cpu")
    found = result([point(1, 26e9), point(2, 26e9, flags=(short,)), point(4, 26e9, flags=(short,))])
    (mark,) = marks(found)
    assert mark.serious and mark.sentence.startswith("At rank counts 2, 4 the recorded job itself would be")


def test_a_flag_is_one_note_with_its_places_and_its_worst_sentence() -> None:
    worse = replace(CACHE, value=0.9, sentence="90 % of the pages")
    raised = [point(ranks, 26e9, flags=(flag,)) for ranks, flag in ((2, CACHE), (4, worse), (4, CACHE))]
    made = replace(plain_sweep(), points=(point(1, 26e9), *raised))
    (note,) = notes(made)
    assert note.where == "rank counts 2, 4"
    assert note.sentence == "90 % of the pages"
    assert [row[-1] for row in points_table(made).texts] == ["", "a", "a", "a"]


def test_what_limits_is_named_with_its_counts_and_its_evidence() -> None:
    (slow,) = limits(EXAMPLES["multi-host"]())
    assert (slow.name, slow.where) == ("client link of node005", "rank counts 28, 32, 48")
    assert slow.evidence[0].startswith("ranks of node005 waited")
    assert set(get_args(BoundKind)) == set(LIMIT_NAMES) == {*HELPS, "compute"}
    assert limits(plain_sweep()) == ()


def test_no_two_limits_have_one_colour_nor_the_knees() -> None:
    assert len({KNEE, *LIMITS.values()}) == len(LIMIT_NAMES) + 1


def test_a_replay_is_in_the_jobs_samples_with_files_and_reads_beside_them() -> None:
    """Two files are a sample of the job."""
    plain = result([point(1, 26e9), point(2, 26e9)])
    made = replace(plain, workload={**plain.workload, "job": {"samples": 0.5, "replay": None}})
    heads = [column.head for column in points_table(made).columns]
    assert heads[1:4] == ["the job's\nsamples/s", "files or\nparts/s", "reads/s"]
    for row, usual in zip(points_table(made).rows, points_table(plain).rows, strict=True):
        assert row[1] == pytest.approx(usual[1] / 2) and row[2] == usual[1]
    assert setting(made).endswith("one process asks for 1.61 GB/s, 3.5 of the job's samples every 636 ms")


@given(st.dictionaries(st.integers(1, 10**7), st.integers(0, 1000), max_size=20))
def test_percentiles_are_those_of_the_upper_edges(histogram: dict[int, int]) -> None:
    found = percentiles({str(edge): count for edge, count in histogram.items()})
    all_edges = np.repeat(sorted(histogram), [histogram[edge] for edge in sorted(histogram)])
    if not len(all_edges):
        assert found == ()
        return
    wanted = np.percentile(all_edges, (50, 90, 99, 99.9, 99.99, 100), method="inverted_cdf") * 1e-6
    assert found == pytest.approx(wanted.tolist())


def test_a_bucket_without_an_edge_is_the_last() -> None:
    assert percentiles({"inf": 1, "1000": 1})[0] == pytest.approx(1e-3)
    assert percentiles({"more": 1})[0] == math.inf


def test_points_that_a_flag_invalidates_do_not_bend_the_line_unless_too_few_are_left() -> None:
    made = [point(1, 26e9), point(2, 26e9), point(2, 13e9, flags=(CACHE,)), point(4, 26e9, flags=(CACHE,))]
    used = [dot.x for dot in dots_of(made, lambda at: at.bytes_per_second) if dot.used]
    assert used == [1, 2]
    assert all(dot.used for dot in dots_of(made[2:], lambda at: at.bytes_per_second))


def test_the_parts_of_a_step_come_from_the_step_log() -> None:
    made = plain_sweep()
    mine = steps_of(made)
    mine = mine[mine["point"] == 0]
    parts = dict(zip(PARTS, mean_steps(with_steps(made))[1], strict=True))
    assert parts["wait"] == pytest.approx(float(mine["wait"].mean()))
    assert mean_steps(made) == {}


def test_the_host_that_waits_most_comes_first() -> None:
    found = host_rows(EXAMPLES["multi-host"]().points[-1])
    waits = [float(row[3] or 0) for row in found]
    assert found[0][0] == "node005"
    assert waits[0] > 1.5 * waits[1]
    assert all(row[-2] == pytest.approx(1.01 * float(row[2] or 0)) for row in found), "GB/s of the NIC"


def test_facts_are_flat_sourced_and_in_units() -> None:
    table = {
        "loader": {"block_bytes": 4_194_304, "crop": (128, 128, 128)},
        "step_seconds": 0.636, "hosts": [{"host": "a"}, {"host": "b"}],
        "none": None, "seed": 10_000, "yes": True,
    }  # fmt: skip
    shown = {fact.name: (fact.value, fact.source) for fact in facts(table, {"step_seconds": "published"})}
    assert shown == {
        "loader: block": ("4.19 MB", ""), "loader: crop": ("128, 128, 128", ""),
        "step": ("636 ms", "published"), "hosts: 0: host": ("a", ""), "hosts: 1: host": ("b", ""),
        "seed": ("10000", ""), "yes": ("yes", ""),
    }  # fmt: skip
