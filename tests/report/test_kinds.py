"""Every kind of result has a module that speaks for it."""

from typing import get_args

import pytest
from synthetic_results import plain_sweep, result

from emulator.record.result import Kind
from emulator.registry import BESIDE, KINDS, load
from emulator.report.view import kind_of


def test_no_kind_is_forgotten():
    assert set(KINDS) == set(get_args(Kind))
    assert all(callable(load(name)) for name in BESIDE.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_kind_speaks_for_an_empty_result_and_stands_beside_another(kind):
    empty = result((), kind=kind)
    spoken = kind_of(empty)
    assert spoken.QUESTION.endswith("?") and spoken.setting(empty) and spoken.answer(empty).endswith(".")
    assert [table for table in spoken.tables(empty) if table.rows] == []
    assert spoken.figures(empty) == ()
    tables, figures = spoken.beside(plain_sweep(), empty)
    assert [table for table in tables if table.rows] == [] and figures == ()
