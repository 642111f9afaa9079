"""Tables as text and HTML, and repeated layers put together."""

import pytest

from partir.program import ScopeTree
from partir.viz.inventory import scopes_table
from partir.viz.repeats import together
from partir.viz.report import MANY, shortened
from partir.viz.table import Table

pytestmark = pytest.mark.core


def test_text_has_a_title_aligned_columns_and_notes() -> None:
    table = Table("fruit", ("name", "count"), (("apple", "1"), ("fig", "200")), ("ripe",), frozenset({"count"}))

    assert str(table).splitlines() == ["fruit", "name   count", "apple      1", "fig      200", "ripe"]


def test_brackets_of_a_cell_are_no_markup() -> None:
    assert "f32[8][bold]" in str(Table("", ("type",), (("f32[8][bold]",),)))


def test_html_escapes_what_it_shows() -> None:
    shown = Table("a < b", ("x & y",), (("<script>",),), ("1 > 0",))._repr_html_()

    assert "<script>" not in shown
    assert all(text in shown for text in ("a &lt; b", "x &amp; y", "&lt;script&gt;", "1 &gt; 0"))


def test_layers_that_differ_in_their_number_alone_are_one() -> None:
    names = [f"layer_{i}/{part}" for i in range(3) for part in ("w", "b")] + ["out/w"]

    found = together(names, [(len(name),) for name in names])

    assert [(r.name, r.rows) for r in found] == [
        ("layer_{0..2}/w", (0, 2, 4)),
        ("layer_{0..2}/b", (1, 3, 5)),
        ("out/w", (6,)),
    ]


def test_a_layer_that_differs_stands_alone() -> None:
    found = together(["layer_0/w", "layer_1/w", "layer_2/w"], [("P()",), ("P('x')",), ("P()",)])

    assert [r.name for r in found] == ["layer_{0,2}/w", "layer_1/w"]


def test_numbers_of_levels_and_of_dims_are_told_apart() -> None:
    names = ["layers/0/w:0", "layers/1/w:0", "layers/1/w:1", "opt/0/count"]

    assert [r.name for r in together(names, [()] * 4)] == ["layers/{0,1}/w:0", "layers/1/w:1", "opt/0/count"]


def test_one_number_in_several_places_is_one() -> None:
    lines = [f"layer_{i}: layer_{i}/w:1 has it" for i in range(2)]

    assert [r.name for r in together(lines, [()] * 2)] == ["layer_{0,1}: layer_{0,1}/w:1 has it"]


def test_scopes_are_indented_and_their_ops_summed() -> None:
    tree = ScopeTree("")
    for path in ("", "layer_0", "layer_0/mlp", "layer_1", "layer_1/mlp", "layer_1/mlp", "loss"):
        tree.insert(path)

    rows = scopes_table(tree).rows

    assert rows == (("(program)", "", "7"), ("  layer_{0,1}", "2", "5"), ("    mlp", "2", "3"), ("  loss", "", "1"))


def test_long_lists_are_counted() -> None:
    lines = [f"{letter} is whole" for letter in "abcdefghijkl"]

    assert shortened(lines, "whole:") == ["whole:", *(f"  {line}" for line in lines[:MANY]), f"  and {12 - MANY} more"]
    assert shortened([], "whole:") == []
    assert shortened(["layer_0 is", "layer_1 is", "layer_0 is"], "whole:") == ["whole:", "  layer_{0,1} is"]
