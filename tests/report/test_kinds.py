"""Every kind of result can say these things of itself."""

import pytest
from synthetic_results import plain_sweep, result

from emulator.registry import KINDS
from emulator.report.view import answer_of, kind_of


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "plan"])  # a plan is never empty
def test_a_kind_speaks_for_an_empty_result_and_stands_beside_another(kind):
    empty = result((), kind=kind)
    spoken = kind_of(empty)
    answer = answer_of(empty)
    assert answer.question.endswith("?") and answer.sentence.endswith(".") and spoken.setting(empty)
    assert [table for table in spoken.tables(empty) if table.rows] == []
    assert spoken.figures(empty) == ()
    tables, figures = spoken.beside(plain_sweep(), empty)
    assert [table for table in tables if table.rows] == [] and figures == ()
